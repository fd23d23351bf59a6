"""Who there is, which table each one uses and which devices: plain data, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from gorila_jax.config import Config
from gorila_jax.learner.gradients import check_batch_size


class Topology(NamedTuple):
    num_tables: int
    actor_tables: tuple[int, ...]  # per actor
    learner_tables: tuple[int, ...]  # per learner
    learner_devices: tuple[tuple[jax.Device, ...], ...]  # per learner


def make_topology(config: Config, devices: Sequence[jax.Device]) -> Topology:
    """Bundles (local replay) or one table for all (global), and an equal share of `devices` per learner.

    Where there are fewer devices than learners, each learner uses exactly one and shares it: learners of
    several devices never share, because two pmaps over the same devices can block each other.

    Raises:
      ConfigError: when a learner's devices do not divide the batch.
    """
    num_learners, num_actors = config.learner.num_learners, config.actor.num_actors
    if config.replay.layout == "local":
        num_tables = num_learners
        actor_tables = tuple(actor * num_learners // num_actors for actor in range(num_actors))
        learner_tables = tuple(range(num_learners))
    else:
        num_tables, actor_tables, learner_tables = 1, (0,) * num_actors, (0,) * num_learners
    share = max(1, len(devices) // num_learners)
    learner_devices = tuple(
        tuple(devices[(learner * share + d) % len(devices)] for d in range(share))
        for learner in range(num_learners)
    )
    check_batch_size(config.learner.batch_size, share)
    return Topology(num_tables, actor_tables, learner_tables, learner_devices)


def describe(topology: Topology, config: Config, num_devices: int) -> list[str]:
    """Lines for the plan that is printed at start."""
    actors = f"{len(topology.actor_tables)} actor(s) x {config.env.num_environments} environments"
    lines = [
        f"{actors}, {topology.num_tables} replay table(s) ({config.replay.layout}), "
        f"{len(topology.learner_tables)} learner(s), {config.parameter_server.num_shards} parameter shard(s)"
    ]
    learners = zip(topology.learner_tables, topology.learner_devices, strict=True)
    for learner, (table, devices) in enumerate(learners):
        feeding = [actor for actor, its_table in enumerate(topology.actor_tables) if its_table == table]
        names = ", ".join(str(device) for device in devices)
        lines.append(f"learner {learner}: table {table} fed by actors {feeding}, on {names}")
    used = {device for devices in topology.learner_devices for device in devices}
    if len(used) < num_devices:
        idle = num_devices - len(used)
        lines.append(f"{idle} of {num_devices} devices stay idle: learners have equal shares")
    return lines
