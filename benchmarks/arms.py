"""The parts of the road, each by itself and all together, to be measured in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.interleaved import Arm, per_second
from benchmarks.lone_actor import lone_actor, lone_actors
from benchmarks.resident_batch import random_observations, resident_batch, resident_learner
from gorila_jax.actor.policy import make_policy
from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.plan import Plan
from gorila_jax.runtime.system import System, build_system
from gorila_jax.runtime.threads import run_threads
from gorila_jax.types import ConfigError, GorilaError, Inputs

ENDLESS = sys.maxsize  # steps
SETTLING_UPDATES = 20  # of the whole system at the start of every round, not measured
PATIENCE_S = 300.0  # for those, compilation and the filling of replay included
TICK_S = 0.02
NUM_ACTION_ROWS = 256


def envpool_figure(num_threads: int) -> str:
    return f"envpool_{num_threads}_threads_frames_per_second"


def envpool_arm(config: Config, num_threads: int, stack: contextlib.ExitStack) -> Arm:
    """EnvPool beneath our wrapper, with the options of a run. Steps that only reset are not counted."""
    env = dataclasses.replace(config.env, num_threads=num_threads)
    environment = make_environment(config.environment, env, seed=0)
    stack.callback(environment.close)
    if not isinstance(environment, PoolEnvironment):
        raise ConfigError(f"--environment={config.environment} is your own, and this compares with EnvPool")
    spec, size = environment.spec, environment.num_environments
    rows = np.random.default_rng(0).integers(spec.num_actions, size=(NUM_ACTION_ROWS, size), dtype=np.int32)
    environment.reset()
    pool = environment._pool
    calls, resets = 0, 0  # resets: environments whose next step ignores its action

    def step() -> int:
        nonlocal calls, resets
        _, _, terminated, truncated, _ = pool.step(rows[calls % NUM_ACTION_ROWS])
        real = size - resets
        calls, resets = calls + 1, int(np.count_nonzero(terminated | truncated))
        return real * spec.frames_per_step

    return lambda seconds: {envpool_figure(num_threads): per_second(step, seconds)}


def policy_arm(plan: Plan) -> Arm:
    """Actions for one actor's environments, from its stacks in host memory, as an actor asks for them."""
    config, spec = plan.config, plan.spec
    size = config.env.num_environments
    network = plan.recipe.network(config, spec)
    policy = make_policy(network)
    cpu = jax.local_devices(backend="cpu")[0]
    parameters, key = jax.device_put((network.init(jax.random.PRNGKey(0)), jax.random.PRNGKey(1)), cpu)
    shape = (size, config.env.frame_stack, *spec.observation_shape)
    stacks = random_observations(shape, spec.observation_dtype)
    inputs = Inputs(stacks, np.zeros(size, np.int32), np.zeros(size, np.float32), np.zeros(size, bool))
    state = jax.device_put(network.initial_state(parameters, size), cpu)
    epsilons = np.full(size, config.actor.epsilon_final, np.float32)
    calls = 0

    def act() -> int:
        nonlocal calls
        jax.device_get(policy(parameters, inputs, state, epsilons, key, calls))
        calls += 1
        return size * spec.frames_per_step

    return lambda seconds: {"policy_frames_per_second": per_second(act, seconds)}


def actor_arm(plan: Plan, stack: contextlib.ExitStack) -> Arm:
    """One actor as in a run, into a replay that nobody samples; its parameters never change."""
    act = lone_actor(plan, stack)
    frames_per_step = plan.spec.frames_per_step
    return lambda seconds: {"actor_frames_per_second": per_second(lambda: act() * frames_per_step, seconds)}


def actors_figure(count: int) -> str:
    return f"actors_{count}_frames_per_second"


def actors_arm(plan: Plan, stack: contextlib.ExitStack) -> Arm:
    """All actors of the plan, each in a thread of its own, and how many threads of the process they keep busy
    between them: those of environments, of XLA and of Reverb count."""
    actors = lone_actors(plan, stack)
    pool = stack.enter_context(ThreadPoolExecutor(len(actors)))
    frames_per_step = plan.spec.frames_per_step

    def measure(seconds: float) -> dict[str, float]:
        begin, processor_begin = time.perf_counter(), time.process_time()
        speeds = list(pool.map(lambda act: per_second(act, seconds), actors))
        busy = (time.process_time() - processor_begin) / (time.perf_counter() - begin)
        return {
            actors_figure(len(actors)): sum(speeds) * frames_per_step,
            f"actors_{len(actors)}_busy_threads": busy,
        }

    return measure


def update_arm(plan: Plan) -> Arm:
    """One learner's updates, on one resident batch.

    Learners with devices of their own multiply what is possible; those that share one do not.
    """
    config, devices = plan.config, plan.topology.learner_devices[0]
    network = plan.recipe.network(config, plan.spec)
    server = make_parameter_server(network.init(jax.random.PRNGKey(0)), config.parameter_server, [devices])
    batch = resident_batch(plan, devices)
    learner = resident_learner(config, plan.recipe.loss(config, network), devices, batch, server)
    shares = len(set(plan.topology.learner_devices))

    def update() -> int:
        return shares * learner.step(0.0)

    return lambda seconds: {"bare_updates_per_second": per_second(update, seconds, settle=server.status)}


class Counts(NamedTuple):
    seconds: float
    steps: int
    updates: int
    samples: int
    inserts: int


def system_arm(plan: Plan, stack: contextlib.ExitStack) -> Arm:
    """The threads of a run. They are stopped between two measurements; replay and parameters stay."""
    coordinator = Coordinator(ENDLESS)
    system = build_system(
        plan,
        coordinator,
        run_id=uuid.uuid4().hex,
        generation=0,
        initial_parameters=None,
        replay_directory=None,
    )
    stack.callback(system.close)

    def measure(seconds: float) -> dict[str, float]:
        start, end = run_for(system, coordinator, seconds)
        elapsed = end.seconds - start.seconds
        samples, inserts = end.samples - start.samples, end.inserts - start.inserts
        return {
            "system_frames_per_second": (end.steps - start.steps) * plan.spec.frames_per_step / elapsed,
            "system_updates_per_second": (end.updates - start.updates) / elapsed,
            "system_samples_per_second": samples / elapsed,
            "system_samples_per_insert": samples / max(1, inserts),
        }

    return measure


def run_for(system: System, coordinator: Coordinator, seconds: float) -> tuple[Counts, Counts]:
    """Runs all threads until they learn and then for so long; the counts at both ends of that time."""
    stop = Coordinator(ENDLESS)  # of this round only; `coordinator` goes on counting
    window: list[Counts] = []
    began = count(system, coordinator)

    def tick() -> None:
        now = count(system, coordinator)
        if window and now.seconds - window[0].seconds >= seconds:
            window.append(now)
            stop.stop("budget")
        elif not window and now.updates - began.updates >= SETTLING_UPDATES:
            window.append(now)
        elif not window and now.seconds - began.seconds > PATIENCE_S:
            raise GorilaError(f"learning has not begun after {PATIENCE_S:.0f} s: {system.describe_waits()}")

    run_threads(system.workers(), stop, tick, TICK_S, system.niceness())
    if stop.failure is not None:
        raise stop.failure
    start, end = window
    return start, end


def count(system: System, coordinator: Coordinator) -> Counts:
    updates = system.server.status().version  # waits for the updates under way, so it comes before the clock
    return Counts(
        seconds=time.perf_counter(),
        steps=coordinator.steps,
        updates=updates,
        samples=sum(learner.samples for learner in system.learners),
        inserts=sum(writer.inserted_items for writer in system.writers),
    )
