"""The one door to every environment."""

from __future__ import annotations

from gorila_jax.config import EnvironmentConfig, check_values
from gorila_jax.environments.names import is_atari, is_user_environment, resolve_name
from gorila_jax.types import ConfigError, Environment, EnvironmentSpec

ATARI_OPTIONS = (
    "frame_skip",
    "noop_max",
    "sticky_action_probability",
    "full_action_set",
    "life_loss_is_end",
    "max_frames_per_episode",
    "flicker_probability",
)
"""Fields of EnvironmentConfig that only Atari games have."""


def make_environment(
    name: str,
    config: EnvironmentConfig,
    *,
    seed: int,
    num_environments: int | None = None,
    training: bool = True,
    renderable: bool = False,
) -> Environment:
    """Makes a batch of environments, which has to be `reset` before its first step.

    The same arguments give the same trace, whatever the number of threads. Another seed gives another
    trace, but not at once: an Atari game has no randomness of its own, so two seeds may show the same first
    frame; they part by the number of no-ops at the start (`noop_max`) and by sticky actions. With a
    `noop_max` of 1 and no sticky actions all seeds play the same game.

    Args:
        name: see `resolve_name`; or `module:factory` where `factory()` returns a `gymnasium.Env`. The
            factory gets `render_mode="rgb_array"` where it takes that and pictures are wanted.
        config: of the environments.
        seed: at least 0; every environment gets one of its own, derived from it.
        num_environments: E; by default the config's.
        training: whether a life lost may count as an end; evaluation plays whole games.
        renderable: the environment also has `render()` with the game's own picture.

    Raises:
        ConfigError: an unknown name, spaces that we cannot learn in, or options that do not go together.
    """
    size = config.num_environments if num_environments is None else num_environments
    if size < 1:
        raise ConfigError(f"num_environments={size}: at least 1")
    if seed < 0:
        raise ConfigError(f"seed={seed}: at least 0")
    name = _checked_name(name, config)
    if is_user_environment(name):
        from gorila_jax.environments.gymnasium import make_gymnasium_environment

        return make_gymnasium_environment(
            name, config, seed=seed, num_environments=size, renderable=renderable
        )
    from gorila_jax.environments.flicker import Flicker
    from gorila_jax.environments.pool import make_pool_environment

    pool = make_pool_environment(
        name, config, seed=seed, num_environments=size, training=training, renderable=renderable
    )
    return Flicker(pool, config.flicker_probability, seed) if config.flicker_probability else pool


def environment_spec(name: str, config: EnvironmentConfig) -> EnvironmentSpec:
    """What `make_environment` gives in training, without starting a pool (a user's environment is made once
    and closed). Raises ConfigError as that does."""
    name = _checked_name(name, config)
    if is_user_environment(name):
        from gorila_jax.environments.gymnasium import gymnasium_environment_spec

        return gymnasium_environment_spec(name, config)
    from gorila_jax.environments.flicker import flickering
    from gorila_jax.environments.pool import pool_environment_spec

    spec = pool_environment_spec(name, config)
    return flickering(spec, config.flicker_probability) if config.flicker_probability else spec


def _checked_name(name: str, config: EnvironmentConfig) -> str:
    """The full name, once it is clear that its options go with it."""
    name = resolve_name(name)
    check_values(config, "env")
    if is_atari(name):
        return name
    defaults = EnvironmentConfig()
    changed = [field for field in ATARI_OPTIONS if getattr(config, field) != getattr(defaults, field)]
    if changed:
        values = ", ".join(f"{field}={getattr(config, field)!r}" for field in changed)
        raise ConfigError(f"{values}: only Atari games have this, and {name} is none; leave it as it was")
    return name
