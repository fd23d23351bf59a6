"""What an agent is: a handful of pure functions and its presets.

Everything else (actors, replay, learners, parameter server, runtime) is shared. To write your own agent,
build a `Recipe`, usually with `_replace` on an existing one, and name it as `--agent=my.module:attribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gorila_jax.actor.accumulator import Accumulator
from gorila_jax.config import Config, get
from gorila_jax.learner.gradients import LossFn
from gorila_jax.rl.windows import Layout
from gorila_jax.types import ConfigError, EnvironmentSpec, Network, ReplayWriter


class Elapsed(NamedTuple):
    """How far the run is, as an exploration schedule sees it."""

    steps: int  # of all environments of all actors
    updates: int  # version of the parameters that the actor holds


class Setting(NamedTuple):
    """One value of a preset, and where it comes from."""

    value: Any
    source: str


Preset = Mapping[str, Setting]
"""`section.field` to its setting; what it does not name keeps the default of `Config`."""

ExplorationFn = Callable[[Elapsed, int, int], float]
"""(elapsed, index of an environment among all, their number) to its epsilon."""


class Recipe(NamedTuple):
    """`validate` and `exploration` raise ConfigError, one for what this agent cannot do, the other for
    settings that it does not read."""

    name: str
    validate: Callable[[Config], None]
    layout: Callable[[Config], Layout]  # of replay items
    accumulator: Callable[[Config, ReplayWriter], Accumulator]  # steps to items
    network: Callable[[Config, EnvironmentSpec], Network]
    exploration: Callable[[Config], ExplorationFn]
    loss: Callable[[Config, Network], LossFn]
    presets: Mapping[str, Preset]  # "paper", "small", "toy"


def check(recipe: Recipe, config: Config) -> None:
    """Raises ConfigError where the agent cannot do what is set, or would not read it."""
    recipe.validate(config)
    recipe.exploration(config)


def check_unread(config: Config, paths: Iterable[str], reason: str) -> None:
    """Raises ConfigError where one of these settings, which the agent does not read, is not its default."""
    nothing = Config()
    for path in paths:
        value = get(config, path)
        if value != get(nothing, path):
            raise ConfigError(f"{path} is {value}, but {config.agent} {reason}")
