"""The agents, each a `Recipe`, found by name or by import path."""

from __future__ import annotations

import difflib
import importlib

from gorila_jax.agents import apex, dqn, drqn, gorila, r2d2
from gorila_jax.agents.recipe import Preset, Recipe
from gorila_jax.config import Config, override
from gorila_jax.types import ConfigError

RECIPES = {
    recipe.name: recipe for recipe in (dqn.recipe, gorila.recipe, apex.recipe, drqn.recipe, r2d2.recipe)
}


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`, or the attribute at `module:attribute`.

    Raises:
      ConfigError: when there is none, naming those there are.
    """
    if ":" in name:
        return _import_recipe(name)
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"unknown agent {name!r}; {hint}possible: {', '.join(RECIPES)}, or your_module:recipe"
        )
    return RECIPES[name]


def _import_recipe(path: str) -> Recipe:
    module_name, attribute = path.split(":", 1)
    try:
        recipe = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"agent {path!r} cannot be imported: {error}") from error
    if not isinstance(recipe, Recipe):
        raise ConfigError(
            f"agent {path!r} is a {type(recipe).__name__}, not a gorila_jax.agents.recipe.Recipe"
        )
    return recipe


def find_preset(recipe: Recipe, name: str) -> Preset:
    """The recipe's preset called `name`; raises ConfigError naming those there are."""
    if name not in recipe.presets:
        raise ConfigError(
            f"agent {recipe.name} has no preset {name!r}; possible: {', '.join(recipe.presets)}"
        )
    return recipe.presets[name]


def apply_preset(config: Config, preset: Preset) -> Config:
    return override(config, {path: setting.value for path, setting in preset.items()})
