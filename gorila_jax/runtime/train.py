"""The verb `train`: from a configuration to a finished, stopped or failed run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import types
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import psutil

from gorila_jax import checkpoints
from gorila_jax.agents import find_recipe
from gorila_jax.agents.recipe import Recipe
from gorila_jax.config import Config, to_json_dict, validate
from gorila_jax.environments import check_autoreset, environment_spec, is_atari, make_environment
from gorila_jax.environments.names import is_user_environment
from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.parameter_server import make_optimizer
from gorila_jax.replay.signature import check_memory, estimate_bytes
from gorila_jax.runtime import configure, topology
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.devices import claim_devices
from gorila_jax.runtime.lockstep import run_lockstep
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.runtime.monitor import REPLAY_DIRECTORY, Monitor
from gorila_jax.runtime.progress import Progress
from gorila_jax.runtime.system import System, build_system, checksum, choose_backend, table_spec
from gorila_jax.runtime.threads import run_threads
from gorila_jax.runtime.workdir import Workdir, open_workdir
from gorila_jax.types import ConfigError, EnvironmentSpec, Parameters

MAY_CHANGE = (
    "run.total_frames", "run.log_period_seconds", "run.platform", "run.host_devices", "checkpoint.*",
    "replay.checkpoint", "replay.port", "replay.run_id", "replay.server_addresses", "env.num_threads",
)  # fmt: skip
"""Settings that a resumed run may have anew: none of them changes what is learned."""

EXIT_CODES = {"budget": 0, "SIGINT": 130, "SIGTERM": 143}
TICK_S = 0.25


class TrainResult(NamedTuple):
    exit_code: int  # 0: the frame budget is used up; 130, 143: stopped by SIGINT, SIGTERM
    workdir: str
    frames: int
    updates: int
    episode_return_mean: float | None  # of the last 100 training episodes, raw
    parameters_checksum: str


class Plan(NamedTuple):
    """What is known of a run before anything of it has started."""

    recipe: Recipe
    spec: EnvironmentSpec
    topology: topology.Topology
    lines: list[str]  # for a person


def make_plan(config: Config) -> Plan:
    """Checks everything that can be checked before a start. Raises ConfigError."""
    validate(config)
    recipe = find_recipe(config.agent)
    recipe.validate(config)
    many = config.learner.num_learners > 1 or config.parameter_server.num_shards > 1
    make_optimizer(config.parameter_server, sharded=many)
    devices = claim_devices(config.run)
    spec = environment_spec(config.environment, config.env)
    placed = topology.make_topology(config, devices)
    shapes = jax.eval_shape(recipe.network(config, spec).init, jax.random.PRNGKey(0))
    num_parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(shapes))
    table = table_spec(config, recipe, spec)
    needed = estimate_bytes(table.signature, table.window_steps, table.capacity_items, placed.num_tables)
    free = psutil.virtual_memory().available
    lines = [
        *configure.describe(config),
        *topology.describe(placed, config),
        f"network: {num_parameters:,} parameters, {spec.num_actions} actions, observations "
        f"{spec.observation_dtype} {spec.observation_shape}",
        f"environment: {', '.join(f'{name}={value}' for name, value in spec.settings.items())}",
        f"replay: {choose_backend(config)}, {placed.num_tables} x {table.capacity_items:,} transitions, "
        f"at most about {needed / 1e9:.2f} GB when full ({free / 1e9:.1f} GB free)",
        f"budget: {config.run.total_frames:,} frames = "
        f"{config.run.total_frames // spec.frames_per_step:,} steps",
    ]
    check_memory(needed, free)
    if config.run.init_from:
        load_initial_parameters(config.run.init_from, shapes)
    return Plan(recipe, spec, placed, lines)


def dry_run(config: Config) -> None:
    """Prints the plan and starts nothing."""
    print("\n".join(make_plan(config).lines))


def default_workdir(config: Config) -> str:
    name = config.environment.replace(":", "-").replace("/", "-")
    return os.path.join("runs", f"{config.agent.replace(':', '-')}-{name}-{config.run.seed}")


def train(config: Config, workdir: str | os.PathLike[str] | None = None) -> TrainResult:
    """Trains until the frame budget is used up or the process is asked to stop.

    A workdir that holds the same experiment is resumed from its newest checkpoint. SIGINT and SIGTERM, where
    this is the main thread, end the run with a checkpoint.

    Args:
      config: from `make_config`.
      workdir: directory of the run; `runs/<agent>-<environment>-<seed>` by default.

    Raises:
      ConfigError: something cannot work, before anything has started.
      GorilaError, or whatever a part raised: the run failed; its last checkpoint stands.
    """
    plan = make_plan(config)
    workdir = workdir or default_workdir(config)
    with open_workdir(workdir, to_json_dict(config), may_change=MAY_CHANGE) as opened:
        title = f"{config.agent} on {config.environment}"
        with Progress(config.run.total_frames, title, log=opened.path / "log.txt") as progress:
            for line in plan.lines:
                progress.note(line)
            for path, (old, new) in opened.changed.items():
                progress.note(f"changed since the last start: {path} = {new} (was {old})")
            check_environment(config)
            return _train(config, plan, opened, progress)


def check_environment(config: Config) -> None:
    """Steps a pool past an end to see that it still resets as the actors believe. A user's own environments,
    which may be slow or real, check that with every step they take. Raises ConfigError."""
    if is_user_environment(config.environment):
        return
    short = config.env
    if is_atari(config.environment):
        short = dataclasses.replace(short, max_frames_per_episode=10 * short.frame_skip)
    environment = make_environment(config.environment, short, seed=0, num_environments=1)
    with contextlib.closing(environment):
        check_autoreset(environment)


def _train(config: Config, plan: Plan, workdir: Workdir, progress: Progress) -> TrainResult:
    saved = checkpoints.restore_latest(workdir.checkpoints)
    state: dict[str, Any] | None = saved[1] if saved else None
    generation = int(state["counters"]["generation"]) + 1 if state else 0
    replay_directory = _saved_replay(config, workdir, saved)
    progress.note(_start_message(workdir, state, replay_directory))
    coordinator = Coordinator(-(-config.run.total_frames // plan.spec.frames_per_step))
    with _signals(coordinator), contextlib.ExitStack() as stack:
        system = build_system(
            config,
            plan.recipe,
            plan.topology,
            plan.spec,
            coordinator,
            run_id=config.replay.run_id or uuid.uuid4().hex,
            generation=generation,
            initial_parameters=_initial_parameters(config) if state is None else None,
            replay_directory=replay_directory,
        )
        stack.callback(system.close)
        metrics = stack.enter_context(
            MetricsWriter(workdir.path, resumed_frames=saved[0] if saved else None)
        )
        monitor = Monitor(system, coordinator, metrics, progress, workdir.checkpoints, generation)
        if state:
            system.restore(state)
            monitor.restore(state["counters"])
        coordinator.count_steps(0)  # a resumed run may have no budget left
        if config.run.lockstep:
            run_lockstep(system, coordinator, monitor.tick)
        else:
            run_threads(system.workers(), coordinator, monitor.tick, TICK_S)
        if coordinator.failure is not None:
            raise coordinator.failure
        for learner in system.learners:
            learner.finish()
        return _finish(system, coordinator, monitor, progress, workdir)


def _finish(
    system: System, coordinator: Coordinator, monitor: Monitor, progress: Progress, workdir: Workdir
) -> TrainResult:
    row = monitor.write_row()
    path = monitor.checkpoint()
    counts = monitor.counts()
    digest = checksum(system.server.pull_policy()[1])
    mean = row["episode_return_mean"]
    progress.note(
        f"{'finished' if coordinator.reason == 'budget' else 'stopped by ' + coordinator.reason} after "
        f"{counts['frames']:,} frames, {counts['updates']:,} updates; checkpoint {path}"
    )
    for actor in system.episodes.actors():
        progress.note(
            f"actor {actor.actor}: {actor.episodes:,} episodes; the last ones had a mean return of "
            f"{actor.return_mean:.4g} at epsilon {actor.epsilon_mean:.4g}"
        )
    progress.note(f"updates: {counts['updates']}")
    progress.note(f"parameters checksum: {digest}")
    return TrainResult(
        exit_code=EXIT_CODES[coordinator.reason],
        workdir=str(workdir.path),
        frames=counts["frames"],
        updates=counts["updates"],
        episode_return_mean=None if mean is None else float(mean),
        parameters_checksum=digest,
    )


def _start_message(workdir: Workdir, state: dict[str, Any] | None, replay_directory: str | None) -> str:
    if state is None:
        return f"starting in {workdir.path}"
    counters = state["counters"]
    replay = "replay is empty: it fills again before learning goes on"
    if replay_directory:
        replay = "with its replay"
    return (
        f"resuming {workdir.path} at {counters['frames']:,} frames, {counters['updates']:,} updates; {replay}"
    )


def _saved_replay(config: Config, workdir: Workdir, saved: tuple[int, Any] | None) -> str | None:
    if saved is None or not config.replay.checkpoint:
        return None
    directory = os.path.join(checkpoints.checkpoint_path(workdir.checkpoints, saved[0]), REPLAY_DIRECTORY)
    return directory if os.path.isdir(directory) else None


def load_initial_parameters(workdir: str, shapes: Parameters) -> Parameters:
    """Another run's newest parameters, refused unless they fit the network: same names, same shapes."""
    parameters = load_run(workdir).parameters
    ours = jax.tree_util.tree_map(lambda leaf: tuple(leaf.shape), shapes)
    theirs = jax.tree_util.tree_map(lambda leaf: tuple(leaf.shape), parameters)
    if ours != theirs:
        raise ConfigError(f"run.init_from={workdir}: its parameters are {theirs}, this network's are {ours}")
    return parameters


def _initial_parameters(config: Config) -> Parameters | None:
    return load_run(config.run.init_from).parameters if config.run.init_from else None


@contextlib.contextmanager
def _signals(coordinator: Coordinator) -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into a clean stop; a second one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: types.FrameType | None) -> None:
        coordinator.stop(signal.Signals(number).name)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
