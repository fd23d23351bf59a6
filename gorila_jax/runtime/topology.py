"""Who there is, which table each one uses and which devices: plain data, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from gorila_jax.config import Config
from gorila_jax.learner.gradients import check_batch_size


class Topology(NamedTuple):
    num_tables: int
    num_servers: int  # of Reverb; table t lies on server t % num_servers
    actor_tables: tuple[int, ...]  # per actor, the one it writes to
    learner_tables: tuple[tuple[int, ...], ...]  # per learner, those it samples from, as much from each
    learner_devices: tuple[tuple[jax.Device, ...], ...]  # per learner


def count_tables(config: Config) -> int:
    """One per bundle of actors and a learner (local replay), or one per server (global)."""
    return config.learner.num_learners if config.replay.layout == "local" else config.replay.server_count


def make_topology(config: Config, devices: Sequence[jax.Device]) -> Topology:
    """Bundles (local replay) or tables that all share (global), and an equal share of `devices` per learner.

    Actors take turns with the tables of a global replay, and every learner samples from all of them (Ape-X,
    Horgan et al. 2018).

    Where there are fewer devices than learners, each learner uses exactly one and shares it: learners of
    several devices never share, because two pmaps over the same devices can block each other.

    Raises:
      ConfigError: when a learner's devices do not divide the batch.
    """
    num_learners, num_actors = config.learner.num_learners, config.actor.num_actors
    num_tables = count_tables(config)
    learner_tables: tuple[tuple[int, ...], ...]
    if config.replay.layout == "local":
        actor_tables = tuple(actor * num_learners // num_actors for actor in range(num_actors))
        learner_tables = tuple((learner,) for learner in range(num_learners))
    else:
        actor_tables = tuple(actor % num_tables for actor in range(num_actors))
        learner_tables = (tuple(range(num_tables)),) * num_learners
    share = max(1, len(devices) // num_learners)
    learner_devices = tuple(
        tuple(devices[(learner * share + d) % len(devices)] for d in range(share))
        for learner in range(num_learners)
    )
    check_batch_size(config.learner.batch_size, share)
    servers = config.replay.server_count
    return Topology(num_tables, servers, actor_tables, learner_tables, learner_devices)


def describe(topology: Topology, config: Config, num_devices: int) -> list[str]:
    """Lines for the plan that is printed at start."""
    actors = f"{len(topology.actor_tables)} actor(s) x {config.env.num_environments} environments"
    lines = [
        f"{actors}, {topology.num_tables} replay table(s) ({config.replay.layout}), "
        f"{len(topology.learner_tables)} learner(s), {config.parameter_server.num_shards} parameter shard(s)"
    ]
    feeding: list[list[int]] = [[] for _ in range(topology.num_tables)]
    for actor, table in enumerate(topology.actor_tables):
        feeding[table].append(actor)
    learners = zip(topology.learner_tables, topology.learner_devices, strict=True)
    for learner, (tables, devices) in enumerate(learners):
        fed = "; ".join(f"table {table} fed by {_actors(feeding[table])}" for table in tables)
        lines.append(f"learner {learner}: {fed}, on {', '.join(str(device) for device in devices)}")
    used = {device for devices in topology.learner_devices for device in devices}
    if len(used) < num_devices:
        idle = num_devices - len(used)
        lines.append(f"{idle} of {num_devices} devices stay idle: learners have equal shares")
    return lines


def _actors(numbers: Sequence[int]) -> str:
    """Actors at equal distances, which both layouts of replay give, as a few words."""
    if len(numbers) <= 4:
        return f"actors {', '.join(map(str, numbers))}"
    if numbers[1] - numbers[0] == 1:
        return f"actors {numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} actors: {numbers[0]}, {numbers[1]}, ..., {numbers[-1]}"
