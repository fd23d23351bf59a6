"""How fast is each part of the road, and how much of that is left when all of them run together?

    python -m benchmarks.frames_per_second --agent=gorila --environment=Pong-v5

Measured in one process, in turns, so that every part meets the same machine:

- *EnvPool*: the environments of one actor, random actions, at 1, n/2, n and 2n threads on n cores. The bound
  of every frame.
- *policy*: the jitted epsilon-greedy policy on frame stacks in host memory, nothing else.
- *actor*: environment, policy, accumulator and replay writer; the ratio of samples to inserts is left free.
- *bare updates*: gradient and push to the parameter server on a batch that lies on the device. The bound of
  every update.
- *system*: all threads of a run, through replay, while it learns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.jax_utils
import jax
import numpy as np
from absl import flags

from benchmarks.report import make_table, report, run
from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import make_policy
from gorila_jax.config import Config, override
from gorila_jax.environments import make_environment
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.learner.gradients import make_gradient_fn
from gorila_jax.learner.prefetch import DeviceBatch, Prefetcher
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.replay import make_replay
from gorila_jax.rl import guards
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.system import System, build_system, choose_backend, table_spec
from gorila_jax.runtime.threads import run_threads
from gorila_jax.runtime.train import Plan, make_plan
from gorila_jax.types import Batch, ConfigError, GorilaError, Gradient, Parameters, SampleInfo, Step

AGENT = flags.DEFINE_string("agent", "gorila", "dqn, gorila, or your_module:recipe")
ENVIRONMENT = flags.DEFINE_string("environment", "Pong-v5", "an EnvPool name")
PRESET = flags.DEFINE_enum("preset", None, ["paper", "small", "toy"], "chosen if not named")
ROUNDS = flags.DEFINE_integer("rounds", 5, "rounds; in each of them every part is measured once", 1)
SECONDS = flags.DEFINE_float("seconds", 3.0, "seconds per part and round", 0.01)
NUM_ENVIRONMENTS = flags.DEFINE_integer("num_environments", None, "per actor; the preset's if not given")
REPLAY_BACKEND = flags.DEFINE_enum("replay_backend", "auto", ["auto", "reverb", "memory"], "to go through")

# Smaller than in a run, so that replay is soon full and evicts; frames still outgrow every cache.
CAPACITY_TRANSITIONS = 20_000
LEARNING_STARTS_TRANSITIONS = 1_000

ENDLESS = sys.maxsize  # steps
SETTLING_UPDATES = 20  # of the whole system at the start of every round, not measured
PATIENCE_S = 300.0  # for those, compilation and the filling of replay included
TICK_S = 0.02
NUM_ACTION_ROWS = 256

Arm = Callable[[float], dict[str, float]]
"""Measures for so many seconds; figures by name. A call of 0 seconds warms it up."""


class Ratio(NamedTuple):
    figure: str
    bound: str  # another figure
    phrase: str  # what it is a share of


def main() -> None:
    config = _config()
    plan = make_plan(config)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(config.env.num_threads or cores, config.env.num_environments)
    counts = {1, max(1, cores // 2), cores, 2 * cores, threads}
    thread_counts = sorted(count for count in counts if count <= config.env.num_environments)
    with contextlib.ExitStack() as stack:
        arms = [envpool_arm(config, count, stack) for count in thread_counts]
        arms.append(policy_arm(config, plan))
        arms.append(actor_arm(config, plan, stack))
        arms.append(update_arm(config, plan))
        arms.append(system_arm(config, plan, stack))
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    envpool = envpool_figure(threads)
    rounds["envpool_then_policy_frames_per_second"] = [
        1 / (1 / environment + 1 / policy)
        for environment, policy in zip(rounds[envpool], rounds["policy_frames_per_second"], strict=True)
    ]
    wanted = ratios_to_take(envpool, thread_counts)
    ratios = {name: median_ratio(rounds, ratio) for name, ratio in wanted.items()}
    if config.replay.samples_per_insert:
        measured = statistics.median(rounds["system_samples_per_insert"])
        ratios["system_samples_per_insert_over_setting"] = measured / config.replay.samples_per_insert
    figures: dict[str, Any] = {name: summary(values) for name, values in rounds.items()}
    figures["settings"] = settings(config, plan, threads)
    title = (
        f"{config.agent} on {config.environment}, preset {config.preset}: {config.env.num_environments} "
        f"environments in {threads} threads, replay {choose_backend(config)}; medians of {ROUNDS.value} x "
        f"{SECONDS.value:g} s"
    )
    columns = ("figure", "median", "lowest", "highest", "share of a bound")
    table = make_table(title, columns, table_rows(rounds, ratios, wanted))
    report("frames_per_second", table, ratios, figures)


def _config() -> Config:
    overrides: dict[str, Any] = {"replay.backend": REPLAY_BACKEND.value}
    if NUM_ENVIRONMENTS.value is not None:
        overrides["env.num_environments"] = NUM_ENVIRONMENTS.value
    config = make_config(AGENT.value, ENVIRONMENT.value, PRESET.value or "", overrides)
    replay = config.replay
    return override(
        config,
        {
            "replay.capacity_transitions": min(replay.capacity_transitions, CAPACITY_TRANSITIONS),
            "replay.learning_starts_transitions": min(
                replay.learning_starts_transitions, LEARNING_STARTS_TRANSITIONS
            ),
        },
    )


def measure_in_turns(arms: Sequence[Arm], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Every figure once per round. Every other round goes backwards: no arm always follows the same."""
    for arm in arms:
        arm(0.0)
    figures: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for arm in arms if number % 2 == 0 else reversed(arms):
            for name, value in arm(seconds).items():
                figures[name].append(value)
    return dict(figures)


def per_second(work: Callable[[], int], seconds: float, settle: Callable[[], object] = lambda: None) -> float:
    """Calls `work` for so long, at least once, and adds up what it says; `settle` waits until it is done."""
    start, done = time.perf_counter(), 0
    while True:
        done += work()
        if time.perf_counter() - start >= seconds:
            break
    settle()
    return done / (time.perf_counter() - start)


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


def policy_arm(config: Config, plan: Plan) -> Arm:
    """Actions for one actor's environments, from its stacks in host memory, as an actor asks for them."""
    spec, size = plan.spec, config.env.num_environments
    network = plan.recipe.network(config, spec)
    policy = make_policy(network)
    cpu = jax.local_devices(backend="cpu")[0]
    parameters, key = jax.device_put((network.init(jax.random.PRNGKey(0)), jax.random.PRNGKey(1)), cpu)
    shape = (size, config.env.frame_stack, *spec.observation_shape)
    stacks = random_observations(shape, spec.observation_dtype)
    epsilons = np.full(size, config.actor.epsilon_final, np.float32)
    calls = 0

    def act() -> int:
        nonlocal calls
        np.asarray(policy(parameters, stacks, epsilons, key, calls))
        calls += 1
        return size * spec.frames_per_step

    return lambda seconds: {"policy_frames_per_second": per_second(act, seconds)}


def actor_arm(config: Config, plan: Plan, stack: contextlib.ExitStack) -> Arm:
    """One actor as in a run, into a replay that nobody samples; its parameters never change."""
    spec, size = plan.spec, config.env.num_environments
    free = override(config, {"replay.samples_per_insert": 0.0})
    table = table_spec(free, plan.recipe, spec)
    replay = make_replay(choose_backend(free), table, 1, run_id=uuid.uuid4().hex)
    stack.callback(replay.close)
    writer = replay.writer(0, size)
    network = plan.recipe.network(config, spec)
    parameters = network.init(jax.random.PRNGKey(0))
    epsilons = np.full(size, config.actor.epsilon_final, np.float32)
    steps = 0

    def count_steps(count: int) -> None:
        nonlocal steps
        steps += count

    ports = ActorPorts(
        ready=writer.ready,
        pull=lambda: (0, parameters),
        epsilons=lambda version: epsilons,
        count_steps=count_steps,
        report=lambda episode: None,
        close=writer.close,
    )
    actor = Actor(
        0,
        make_environment(config.environment, config.env, seed=1),
        make_policy(network),
        plan.recipe.accumulator(config, writer),
        ports,
        config.env.frame_stack,
        config.actor.parameter_period_steps,
        config.learner.max_abs_reward,
        jax.random.PRNGKey(1),
    )
    stack.callback(actor.close)

    def step() -> int:
        before = steps
        actor.step(1.0)
        return (steps - before) * spec.frames_per_step

    return lambda seconds: {"actor_frames_per_second": per_second(step, seconds)}


def update_arm(config: Config, plan: Plan) -> Arm:
    """One learner's gradient and its push, on one resident batch; the host stays one update ahead.

    Learners with devices of their own multiply what is possible; those that share one do not.
    """
    devices = plan.topology.learner_devices[0]
    network = plan.recipe.network(config, plan.spec)
    parameters: Parameters = network.init(jax.random.PRNGKey(0))
    server = make_parameter_server(parameters, config.parameter_server, [devices])
    gradient_fn = make_gradient_fn(plan.recipe.loss(config, network), config.learner, devices)
    guard = flax.jax_utils.replicate(guards.initial_guard_state(), devices)
    batch = resident_batch(config, plan, devices)
    shares = len(set(plan.topology.learner_devices))

    def update() -> int:
        nonlocal guard
        snapshot = server.pull(0)
        parameters, target = snapshot.parameters, snapshot.target_parameters
        output = gradient_fn(parameters, target, guard, batch.steps, batch.weights)
        server.push(0, Gradient(snapshot.version, output.gradients, output.finite, output.outlier))
        jax.block_until_ready(guard)  # which the update before this one gave
        guard = output.guard
        return shares

    return lambda seconds: {"bare_updates_per_second": per_second(update, seconds, settle=server.status)}


def resident_batch(config: Config, plan: Plan, devices: Sequence[jax.Device]) -> DeviceBatch:
    """Random observations, actions and rewards of the sizes of a run."""
    random, size, spec = np.random.default_rng(0), config.learner.batch_size, plan.spec
    leading = (size, plan.recipe.window_steps(config))
    steps = Step(
        observation=random_observations((*leading, *spec.observation_shape), spec.observation_dtype),
        action=random.integers(spec.num_actions, size=leading, dtype=np.int32),
        reward=random.integers(-1, 2, size=leading).astype(np.float32),
        discount=np.full(leading, config.env.discount, np.float32),
        valid=np.ones(leading, np.bool_),
    )
    keys, probabilities = np.arange(size, dtype=np.uint64), np.full(size, 1 / size)
    info = SampleInfo(keys, probabilities, np.full(size, size, np.int64))
    learner = dataclasses.replace(config.learner, prefetch_batches=0)
    batch = Prefetcher(learner, devices, lambda timeout_s: Batch(steps, info)).next_batch(0.0)
    assert batch is not None
    return batch


def random_observations(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    scale = 255 if np.issubdtype(dtype, np.integer) else 1
    return (np.random.default_rng(0).random(shape, np.float32) * scale).astype(dtype)


class Counts(NamedTuple):
    seconds: float
    steps: int
    updates: int
    samples: int
    inserts: int


def system_arm(config: Config, plan: Plan, stack: contextlib.ExitStack) -> Arm:
    """The threads of a run. They are stopped between two measurements; replay and parameters stay."""
    coordinator = Coordinator(ENDLESS)
    system = build_system(
        config,
        plan.recipe,
        plan.topology,
        plan.spec,
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

    run_threads(system.workers(), stop, tick, TICK_S)
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


def ratios_to_take(envpool: str, thread_counts: Sequence[int]) -> dict[str, Ratio]:
    """`envpool`: its figure at the threads that an actor uses."""
    one, actor, system = envpool_figure(1), "actor_frames_per_second", "system_frames_per_second"
    serial = "envpool_then_policy_frames_per_second"
    return {
        **{
            f"envpool_{threads}_threads_over_1": Ratio(envpool_figure(threads), one, "1 thread")
            for threads in thread_counts
            if threads > 1
        },
        "policy_over_envpool": Ratio("policy_frames_per_second", envpool, "EnvPool"),
        "actor_over_envpool": Ratio(actor, envpool, "EnvPool"),
        "actor_over_envpool_then_policy": Ratio(actor, serial, "EnvPool, then policy"),
        "system_frames_over_envpool": Ratio(system, envpool, "EnvPool"),
        "system_frames_over_actor": Ratio(system, actor, "the actor alone"),
        "system_updates_over_bare": Ratio(
            "system_updates_per_second", "bare_updates_per_second", "bare updates"
        ),
    }


def median_ratio(rounds: Mapping[str, Sequence[float]], ratio: Ratio) -> float:
    """Taken within each round first: the machine changes less within a round than over the run."""
    return statistics.median(a / b for a, b in zip(rounds[ratio.figure], rounds[ratio.bound], strict=True))


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def table_rows(
    rounds: Mapping[str, Sequence[float]], ratios: Mapping[str, float], taken: Mapping[str, Ratio]
) -> list[list[str]]:
    rows = []
    for figure, values in rounds.items():
        numbers = [f"{value:,.4g}" if value < 100 else f"{value:,.0f}" for value in summary(values).values()]
        shares = [
            f"{ratios[name]:.1%} of {ratio.phrase}" for name, ratio in taken.items() if ratio.figure == figure
        ]
        rows.append([figure.replace("_", " "), *numbers, "\n".join(shares)])
    return rows


def settings(config: Config, plan: Plan, num_threads: int) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    return {
        "agent": config.agent,
        "environment": dict(plan.spec.settings) | {"name": config.environment},
        "preset": config.preset,
        "replay_backend": choose_backend(config),
        "num_actors": config.actor.num_actors,
        "num_environments": config.env.num_environments,
        "num_threads": num_threads,
        "frames_per_step": plan.spec.frames_per_step,
        "num_learners": config.learner.num_learners,
        "num_shards": config.parameter_server.num_shards,
        "batch_size": config.learner.batch_size,
        "n_steps": config.learner.n_steps,
        "samples_per_insert": config.replay.samples_per_insert,
        "capacity_transitions": config.replay.capacity_transitions,
        "rounds": ROUNDS.value,
        "seconds": SECONDS.value,
    }


if __name__ == "__main__":
    run(main)
