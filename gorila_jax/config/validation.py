"""What a configuration must fulfil whatever the agent, checked before anything starts."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

from gorila_jax.config.settings import Config, get
from gorila_jax.types import ConfigError


def validate(config: Config) -> None:
    """Checks every value by itself and those that must fit each other, whatever the agent.

    Raises:
      ConfigError: naming the setting, its value and what would be right.
    """
    for leaf in dataclasses.fields(config):
        section = getattr(config, leaf.name)
        if dataclasses.is_dataclass(section):
            check_values(section, leaf.name)
    _validate_together(config)


def check_values(section: Any, name: str) -> None:
    """Checks every value of one section by itself.

    Args:
      section: one of `Config`'s.
      name: by which `Config` has it.

    Raises:
      ConfigError: naming the setting, its value and what would be right.
    """
    for leaf in dataclasses.fields(section):
        path, value = f"{name}.{leaf.name}", getattr(section, leaf.name)
        minimum, maximum, choices = (leaf.metadata[key] for key in ("minimum", "maximum", "choices"))
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"{path} is {number}, it must be finite")
            if minimum is not None and number < minimum:
                raise ConfigError(f"{path} is {number}, it must be at least {minimum}")
            if maximum is not None and number > maximum:
                raise ConfigError(f"{path} is {number}, it must be at most {maximum}")
        if choices and value not in choices:
            words = ", ".join(choice or repr(choice) for choice in choices)
            raise ConfigError(f"{path} is {value!r}, possible: {words}")


def _validate_together(config: Config) -> None:
    replay, learner, actor, sequence = config.replay, config.learner, config.actor, config.sequence
    if sequence.overlap_steps >= sequence.length_steps:
        raise ConfigError(
            f"sequence.overlap_steps is {sequence.overlap_steps}, it must be less than "
            f"sequence.length_steps = {sequence.length_steps}: the next sequence begins after this one"
        )
    for key, count in collections.Counter(config.env.observation_keys).items():
        if count > 1:
            raise ConfigError(f"env.observation_keys names {key} twice")
    stride = sequence.stride_steps
    for name, steps in (
        ("learning_starts", replay.learning_starts_steps),
        ("capacity", replay.capacity_steps),
    ):
        if steps < stride:
            raise ConfigError(
                f"replay.{name}_steps is {steps}, less than one sequence: it must be at least {stride}, "
                "sequence.length_steps less sequence.overlap_steps"
            )
    if -(-replay.learning_starts_steps // stride) > replay.capacity_steps // stride:
        whole = f" in whole sequences, of which one begins every {stride} steps" if stride > 1 else ""
        raise ConfigError(
            f"replay.learning_starts_steps is {replay.learning_starts_steps}, more than "
            f"replay.capacity_steps = {replay.capacity_steps}{whole}: learning would never start"
        )
    if replay.layout == "local" and actor.num_actors % learner.num_learners:
        raise ConfigError(
            f"replay.layout=local gives every learner its own actors: actor.num_actors = {actor.num_actors} "
            f"must be a multiple of learner.num_learners = {learner.num_learners}"
        )
    _validate_servers(config)
    if config.run.lockstep and replay.backend == "reverb":
        raise ConfigError("run.lockstep needs the seeded in-process replay: replay.backend=memory (or auto)")
    if replay.server_addresses and replay.checkpoint:
        raise ConfigError("replay.checkpoint saves this process's server: not with replay.server_addresses")
    for address in replay.server_addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"replay.server_addresses holds {address!r}, which is not host:port")
    if replay.server_addresses and not replay.run_id:
        raise ConfigError(
            "replay.server_addresses needs replay.run_id, the name that those servers were started with"
        )


def _validate_servers(config: Config) -> None:
    replay, servers = config.replay, config.replay.server_count
    if replay.num_servers not in (1, servers):
        raise ConfigError(
            f"replay.num_servers is {replay.num_servers}, but replay.server_addresses names {servers}"
        )
    if replay.layout == "local" and servers > config.learner.num_learners:
        raise ConfigError(
            f"replay.layout=local has one table per learner: learner.num_learners = "
            f"{config.learner.num_learners} are too few for {servers} replay servers"
        )
    if not replay.server_addresses and replay.port + servers - 1 > 65535:
        raise ConfigError(
            f"replay.port is {replay.port}: {servers} servers need as many ports from there to 65535"
        )
    if replay.layout == "global":
        for path in ("actor.num_actors", "learner.batch_size", "replay.capacity_steps"):
            value = get(config, path)
            below = value // servers * servers
            if below != value:
                sizes = " or ".join(str(size) for size in (below, below + servers) if size)
                raise ConfigError(
                    f"{path} is {value}, but {servers} replay servers need equal shares of it: use {sizes}"
                )
