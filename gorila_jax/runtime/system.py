"""Wires the workers of one run together. Here every port gets what stands behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import make_policy
from gorila_jax.agents.recipe import Elapsed, ExplorationFn
from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher, StandIn
from gorila_jax.learner.priorities import PriorityWriter
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.replay import make_replay, spread_sampler
from gorila_jax.rl.windows import Layout
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.episodes import EpisodeStatistics
from gorila_jax.runtime.plan import Plan, state_size
from gorila_jax.runtime.threads import IDLE, Worker, call_yielding
from gorila_jax.runtime.waits import TimedEnvironment, Waits
from gorila_jax.types import (
    EnvironmentSpec,
    Parameters,
    ParameterServer,
    Replay,
    ReplayWriter,
    Sampler,
)


class System(NamedTuple):
    """Everything that lives while a run runs."""

    config: Config
    spec: EnvironmentSpec
    layout: Layout  # of replay items
    actors: list[Actor]
    writers: list[ReplayWriter]
    samplers: list[Sampler]
    prefetchers: list[Prefetcher]  # none in lockstep
    stand_ins: list[StandIn]  # of the prefetchers, each with a sampler of its own
    learners: list[Learner]
    priority_writers: list[PriorityWriter]  # one per learner; none where replay samples uniformly
    server: ParameterServer
    replay: Replay
    episodes: EpisodeStatistics
    waits: Waits
    exploration: list[Callable[[int], np.ndarray]]  # per actor: version held to its epsilons [E]

    def epsilons(self) -> list[np.ndarray]:
        """Every actor's epsilons [E] now; of one that holds no parameters yet, those it will begin with."""
        version = self.server.status().version
        return [
            epsilons(version if actor.parameter_version < 0 else actor.parameter_version)
            for actor, epsilons in zip(self.actors, self.exploration, strict=True)
        ]

    def epsilons_at(self, version: int) -> np.ndarray:
        """Epsilons [actors, E], were every actor to hold parameters of `version`.

        What differs among them differs by design, and not because one actor has pulled later than another.
        """
        return np.stack([epsilons(version) for epsilons in self.exploration])

    def workers(self) -> dict[str, Worker]:
        """What wants a thread, by name."""
        named: dict[str, Worker] = {}
        kinds: dict[str, Sequence[Worker]] = {
            "actor": self.actors, "prefetcher": self.prefetchers, "stand_in": self.stand_ins,
            "learner": self.learners, "priority_writer": self.priority_writers,
        }  # fmt: skip
        for kind, workers in kinds.items():
            named |= {f"{kind}_{index}": worker for index, worker in enumerate(workers)}
        return named

    def niceness(self) -> dict[str, int]:
        """Of `workers`, by name: all others feed the learners, and give way to them.

        The prefetchers, whose work nobody waits for, do so entirely: a stand-in is there for them.
        """
        feeders = self.config.run.feeder_niceness
        levels = {"learner": 0, "prefetcher": IDLE if feeders else 0}
        return {name: levels.get(name.rpartition("_")[0], feeders) for name in self.workers()}

    def describe_waits(self) -> str:
        """Who waits for what, table by table."""
        lines = []
        for table in range(self.replay.num_tables):
            status = self.replay.status(table)
            lines.append(
                f"table {table} holds {status.size_items} of {status.capacity_items} items, "
                f"{status.inserted_items} inserted, {status.sampled_items} sampled; "
                f"inserts {'may go on' if status.can_insert else 'must wait'}, "
                f"samples {'may go on' if status.can_sample else 'must wait'}"
            )
        return "; ".join(lines)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the counters; each part consistent in itself."""
        return {
            "server": self.server.state(),
            "learners": [learner.state() for learner in self.learners],
            "episodes": self.episodes.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.server.restore(state["server"])
        for learner, its_state in zip(self.learners, state["learners"], strict=True):
            learner.restore(its_state)
        self.episodes.restore(state["episodes"])

    def close(self, stuck: Collection[str] = ()) -> None:
        """Ends every part, whatever state it is in; one that fails does not keep the others open.

        Args:
          stuck: names of workers whose threads still run: their environments are not pulled from under them.
        """
        actors = [actor for actor in self.actors if f"actor_{actor.index}" not in stuck]
        parts: list[Replay | Sampler | Actor] = [*self.samplers, self.replay, *actors]
        with contextlib.ExitStack() as stack:
            for part in parts:  # the last one is closed first
                stack.callback(part.close)


def build_system(
    plan: Plan,
    coordinator: Coordinator,
    *,
    run_id: str,
    generation: int,
    initial_parameters: Parameters | None,
    replay_directory: str | None,
) -> System:
    """Builds every worker and joins them up.

    The threads that environments and replay start here yield to the learners' (`yield_to_others`). In
    lockstep there is one thread only, and everything is built in it.

    Args:
      run_id: what this run's replay clients recognise their server by.
      generation: one more than that of the checkpoint resumed from; actors and environments go on with
        other randomness than they had before it.
      initial_parameters: of another run to start from, else the network's own initial ones.
      replay_directory: of a saved replay to restore, if any.
    """
    with contextlib.ExitStack() as undo:  # of what was started, if something after it fails
        build = functools.partial(
            _build, plan, coordinator, undo, run_id, generation, initial_parameters, replay_directory
        )
        run = plan.config.run
        system = build() if run.lockstep else call_yielding(run.feeder_niceness, build)
        undo.pop_all()
    return system


def _build(
    plan: Plan,
    coordinator: Coordinator,
    undo: contextlib.ExitStack,
    run_id: str,
    generation: int,
    initial_parameters: Parameters | None,
    replay_directory: str | None,
) -> System:
    config, recipe, topology = plan.config, plan.recipe, plan.topology
    network = recipe.network(config, plan.spec)
    parameter_key, actor_key = jax.random.split(jax.random.PRNGKey(config.run.seed))
    parameters = network.init(parameter_key) if initial_parameters is None else initial_parameters
    server = make_parameter_server(parameters, config.parameter_server, topology.learner_devices)
    replay = make_replay(
        plan.backend,
        plan.table,
        topology.num_tables,
        seed=_seed(config.run.seed, "replay", generation),
        run_id=run_id,
        addresses=config.replay.server_addresses,
        port=config.replay.port,
        num_servers=topology.num_servers,
    )
    undo.callback(replay.close)
    if replay_directory:
        replay.restore(replay_directory)
    waits, episodes = Waits(), EpisodeStatistics()

    samplers: list[Sampler] = []
    prefetchers, stand_ins, learners, priority_writers = [], [], [], []
    loss_fn = recipe.loss(config, network)
    # In lockstep the learner samples by itself, and so there is no queue to fill.
    learner_config = config.learner
    if config.run.lockstep:
        learner_config = dataclasses.replace(learner_config, prefetch_batches=0)
    for index, (tables, devices) in enumerate(
        zip(topology.learner_tables, topology.learner_devices, strict=True)
    ):
        sampler, other = (spread_sampler(replay, tables, learner_config.batch_size) for _ in range(2))
        prefetcher = Prefetcher(learner_config, devices, sampler.sample)
        stand_ins.append(StandIn(prefetcher, other.sample))
        send_priorities = None
        if config.replay.priority_exponent:
            priority_writers.append(PriorityWriter(sampler.update_priorities))
            send_priorities = priority_writers[-1].send
        learners.append(
            Learner(
                learner_config,
                loss_fn,
                devices,
                waits.timed("learner", prefetcher.next_batch),
                pull=functools.partial(server.pull, index),
                push=functools.partial(server.push, index),
                send_priorities=send_priorities,
            )
        )
        samplers += sampler, other
        prefetchers.append(prefetcher)

    act = make_policy(network)  # a call returns before it has computed: to wait for that is part of choosing
    policy = waits.timed("policy", lambda *arguments: jax.block_until_ready(act(*arguments)))
    actors, writers, exploration = [], [], []
    for index, table in enumerate(topology.actor_tables):
        writer = replay.writer(table, config.env.num_environments)
        epsilons = _epsilons(config, recipe.exploration(config), coordinator, index)
        writers.append(writer)
        exploration.append(epsilons)
        ports = ActorPorts(
            ready=waits.timed("actor", writer.ready),
            pull=waits.timed("pull", server.pull_policy),
            epsilons=epsilons,
            count_steps=coordinator.count_steps,
            report=episodes.add,
            close=writer.close,
        )
        environment = make_environment(
            config.environment, config.env, seed=_seed(config.run.seed, "environment", generation, index)
        )
        undo.callback(environment.close)
        actors.append(
            Actor(
                index,
                TimedEnvironment(environment, waits, "environment"),
                policy,
                recipe.accumulator(config, writer),
                ports,
                config.env.frame_stack,
                config.actor.parameter_period_steps,
                config.learner.max_abs_reward,
                jax.random.fold_in(jax.random.fold_in(actor_key, index), generation),
                state_size(network),
            )
        )
    if not learner_config.prefetch_batches:
        prefetchers, stand_ins = [], []
    return System(
        config, plan.spec, recipe.layout(config), actors, writers, samplers, prefetchers, stand_ins,
        learners, priority_writers, server, replay, episodes, waits, exploration,
    )  # fmt: skip


def _epsilons(
    config: Config, epsilon: ExplorationFn, coordinator: Coordinator, actor: int
) -> Callable[[int], np.ndarray]:
    """The exploration of one actor's environments, given the version of the parameters that it holds."""
    size = config.env.num_environments
    total = size * config.actor.num_actors
    indices = range(actor * size, (actor + 1) * size)

    def epsilons(version: int) -> np.ndarray:
        elapsed = Elapsed(coordinator.steps, max(0, version))
        return np.array([epsilon(elapsed, index, total) for index in indices], np.float32)

    return epsilons


def _seed(*parts: int | str) -> int:
    """A seed for one part of a run: different parts and different runs do not share one."""
    entropy = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)  # fits a signed 32-bit integer


def checksum(parameters: Parameters) -> str:
    """SHA-256 over the parameters as one flat float32 vector."""
    return hashlib.sha256(np.asarray(ravel_pytree(parameters)[0], np.float32).tobytes()).hexdigest()
