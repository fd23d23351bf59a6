"""From an agent, an environment and a few changes to a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gorila_jax.agents import apply_preset, find_preset, find_recipe
from gorila_jax.agents.recipe import Preset, check
from gorila_jax.config import Config, fields, get, override, validate
from gorila_jax.environments import is_atari, resolve_name
from gorila_jax.environments.make import ATARI_OPTIONS
from gorila_jax.types import ConfigError


def make_config(
    agent: str = "gorila",
    environment: str = "Pong-v5",
    preset: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The agent's preset for this environment, with `overrides` (dotted path to value) on top.

    Unless named, the preset is `small` on Atari and `toy` elsewhere. `paper` is never chosen silently: it
    may ask for a cluster and a terabyte, and the choice must be the same wherever a workdir is resumed.

    Raises:
      ConfigError: for a name, a path or a value that is not possible, saying what is.
    """
    for what, name in (("agent", agent), ("environment", environment)):
        if not isinstance(name, str):
            raise ConfigError(
                f"the {what} is given by its name or as 'module:attribute', so that a workdir finds it, "
                f"not as a {type(name).__name__}"
            )
    recipe = find_recipe(agent)
    environment = resolve_name(environment)
    if not preset:
        preset = "small" if is_atari(environment) else "toy"
    base = override(Config(), {"agent": agent, "environment": environment, "preset": preset})
    config = override(apply_preset(base, _its_preset(base)), overrides or {})
    validate(config)
    check(recipe, config)
    return config


def describe(config: Config) -> list[str]:
    """Every value that is not the default, with its source where a preset gave it."""
    preset = _its_preset(config) if config.preset else {}
    lines = [f"agent {config.agent}, environment {config.environment}, preset {config.preset or 'none'}"]
    for path, leaf in fields().items():
        value = get(config, path)
        if "." not in path or (value == leaf.default and path not in preset):
            continue
        from_preset = path in preset and preset[path].value == value
        lines.append(f"  {path} = {value}  ({preset[path].source if from_preset else 'set for this run'})")
    return lines


def _its_preset(config: Config) -> Preset:
    """The preset that a configuration names; where it is of no Atari game, without their settings."""
    preset = find_preset(find_recipe(config.agent), config.preset)
    if is_atari(config.environment):
        return preset
    atari_only = {f"env.{option}" for option in ATARI_OPTIONS}
    return {path: setting for path, setting in preset.items() if path not in atari_only}
