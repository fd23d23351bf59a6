"""The verb `train`: from a configuration to a finished, stopped or failed run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
import traceback
import types
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gorila_jax import checkpoints
from gorila_jax.config import Config, to_json_dict
from gorila_jax.environments import check_autoreset, is_atari, make_environment
from gorila_jax.environments.names import is_user_environment
from gorila_jax.evaluation.policy import check_fit
from gorila_jax.evaluation.saved_run import CHECKPOINTS, load_run
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.episodes import EpisodeStatistics, EpisodeWriter, written_before
from gorila_jax.runtime.lockstep import run_lockstep
from gorila_jax.runtime.metrics import METRICS, MetricsWriter
from gorila_jax.runtime.monitor import REPLAY_DIRECTORY, Monitor
from gorila_jax.runtime.plan import Plan, make_plan
from gorila_jax.runtime.pool_threads import choose_pool_threads
from gorila_jax.runtime.progress import Progress, exploration_table
from gorila_jax.runtime.system import System, build_system, checksum
from gorila_jax.runtime.threads import run_threads
from gorila_jax.runtime.workdir import LOG, Workdir, check_workdir, open_workdir
from gorila_jax.types import ConfigError, EnvironmentSpec, GorilaError, Parameters, ReplayError, RunError

MAY_CHANGE = (
    "run.total_frames", "run.log_period_seconds", "run.platform", "run.host_devices", "checkpoint.*",
    "replay.checkpoint", "replay.port", "replay.run_id", "replay.server_addresses", "env.num_threads",
    "env.gymnasium_workers", "run.xla_threads", "run.feeder_niceness",
)  # fmt: skip
"""Settings that a resumed run may have anew: none of them changes what is learned."""

EXIT_CODES = {"budget": 0, "SIGINT": 130, "SIGTERM": 143}
TICK_S = 0.25
SAME_SIGNAL_S = 1.0


class TrainResult(NamedTuple):
    exit_code: int  # 0: the frame budget is used up; 130, 143: stopped by SIGINT, SIGTERM
    workdir: str
    frames: int
    updates: int
    episode_return_mean: float | None  # of the last 100 training episodes, raw
    parameters_checksum: str


def dry_run(config: Config, workdir: str | os.PathLike[str] | None = None) -> None:
    """Prints the plan, checks what `train` would check, and starts nothing. Raises ConfigError."""
    plan = make_plan(config)
    print("\n".join(plan.lines))
    plan.check_memory()
    check_workdir(workdir or default_workdir(config), to_json_dict(config), may_change=MAY_CHANGE)
    load_initial_parameters(config, plan.spec)


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
      ConfigError: something cannot work, before any actor has started.
      ReplayError: a replay server does not answer or is not this run's.
      RunError: a part failed while the run ran, and is the error's cause; the last checkpoint stands.
    """
    plan = make_plan(config)
    plan.check_memory()
    workdir = workdir or default_workdir(config)
    initial_parameters = None
    if not checkpoints.list_checkpoints(os.path.join(workdir, CHECKPOINTS)):
        initial_parameters = load_initial_parameters(config, plan.spec)
    with open_workdir(workdir, to_json_dict(config), may_change=MAY_CHANGE) as opened:
        title = f"{config.agent} on {config.environment}"
        try:
            with Progress(config.run.total_frames, title, log=opened.path / LOG) as progress:
                for line in plan.lines:
                    progress.note(line)
                for path, (old, new) in opened.changed.items():
                    progress.note(f"changed since the last start: {path} = {new} (was {old})")
                check_environment(config, progress)
                return _train(config, plan, opened, progress, initial_parameters)
        except GorilaError:
            if not opened.resumed and not (opened.path / METRICS).exists():
                opened.discard()  # nothing has run: the corrected command may use the directory
            raise


def check_environment(config: Config, progress: Progress) -> None:
    """Steps a pool past an end to see that it still resets as the actors believe. A user's own environments,
    which may be slow or real, check that with every step they take. Raises ConfigError."""
    if is_user_environment(config.environment):
        return
    short = config.env
    if is_atari(config.environment):
        short = dataclasses.replace(short, max_frames_per_episode=10 * short.frame_skip)
    environment = make_environment(config.environment, short, seed=0, num_environments=1)
    with contextlib.closing(environment):
        if not check_autoreset(environment):
            progress.note("no episode ended in the self-test: how the environment resets was not checked")


def _train(
    config: Config, plan: Plan, workdir: Workdir, progress: Progress, initial_parameters: Parameters | None
) -> TrainResult:
    saved = checkpoints.restore_latest(workdir.checkpoints)
    state: dict[str, Any] | None = saved[1] if saved else None
    coordinator = Coordinator(-(-config.run.total_frames // plan.spec.frames_per_step))
    if saved is not None and state is not None and _is_finished(config, plan, state):
        return _nothing_left(workdir, state, progress)
    generation = int(state["counters"]["generation"]) + 1 if state else 0
    replay_directory = _saved_replay(config, workdir, saved)
    progress.note(_start_message(config, workdir, state, replay_directory))
    if initial_parameters is not None:
        progress.note(
            f"parameters taken from {config.run.init_from}; exploration, and a decay of the learning rate, "
            "start anew"
        )
    with _signals(coordinator), contextlib.ExitStack() as stack:
        num_threads = choose_pool_threads(config, progress.note)
        threaded = dataclasses.replace(config.env, num_threads=num_threads)
        system = build_system(
            plan._replace(config=dataclasses.replace(config, env=threaded)),
            coordinator,
            run_id=config.replay.run_id or uuid.uuid4().hex,
            generation=generation,
            initial_parameters=initial_parameters,
            replay_directory=replay_directory,
        )._replace(config=config)  # as it was set: checkpoints do not depend on this machine's threads
        stuck: list[str] = []  # filled below, read when the stack unwinds
        stack.callback(system.close, stuck)
        if state is None:
            _refuse_used_replay(system)
        resumed_frames = saved[0] if saved else None
        metrics = stack.enter_context(MetricsWriter(workdir.path, resumed_frames))
        written = written_before(state["episodes"]) if state else None
        episodes = stack.enter_context(EpisodeWriter(workdir.path, resumed_frames, written))
        monitor = Monitor(system, coordinator, metrics, episodes, progress, workdir.checkpoints, generation)
        if state:
            system.restore(state)
            monitor.restore(state["counters"])
        try:
            if config.run.lockstep:
                run_lockstep(system, coordinator, monitor.tick)
            else:
                stuck += run_threads(system.workers(), coordinator, monitor.tick, TICK_S, system.niceness())
            if coordinator.failure is not None:
                raise coordinator.failure
            for learner in system.learners:
                learner.finish()
            for index, priority_writer in enumerate(system.priority_writers):
                while f"priority_writer_{index}" not in stuck and priority_writer.step(0.0):
                    pass  # the last ones belong into the final checkpoint
        except BaseException as error:
            # What an environment calls sys.exit for is a fault too; a second Ctrl-C is none.
            if not isinstance(error, Exception | SystemExit) and error is not coordinator.failure:
                raise
            progress.note("".join(traceback.format_exception(error)))
            found = checkpoints.list_checkpoints(workdir.checkpoints)
            left = f"its checkpoint of {found[-1]:,} frames stands" if found else "there is no checkpoint yet"
            raise RunError(f"the run failed with {type(error).__name__}: {error}; {left}") from error
        if stuck:
            progress.note(f"did not stop in time and were left behind: {', '.join(stuck)}")
        return _finish(system, coordinator, monitor, progress, workdir)


def _is_finished(config: Config, plan: Plan, state: Mapping[str, Any]) -> bool:
    return int(state["counters"]["steps"]) * plan.spec.frames_per_step >= config.run.total_frames


def _nothing_left(workdir: Workdir, state: Mapping[str, Any], progress: Progress) -> TrainResult:
    """A finished run that is started again stays as it is."""
    counters, server = state["counters"], state["server"]
    digest = checksum(server["parameters"])
    progress.note(
        f"{workdir.path} is finished: {counters['frames']:,} frames, {counters['updates']:,} updates; give a "
        "larger --total_frames to go on"
    )
    progress.note(f"parameters checksum: {digest}")
    episodes = EpisodeStatistics()
    episodes.restore(state["episodes"])
    mean = episodes.row()["episode_return_mean"]
    return TrainResult(
        exit_code=EXIT_CODES["budget"],
        workdir=str(workdir.path),
        frames=int(counters["frames"]),
        updates=int(counters["updates"]),
        episode_return_mean=None if mean is None else float(mean),
        parameters_checksum=digest,
    )


def _refuse_used_replay(system: System) -> None:
    """Raises ReplayError where servers that a new run was given hold items of another."""
    for table in range(system.replay.num_tables):
        size = system.replay.status(table).size_items
        if size:
            raise ReplayError(
                f"this run is new, but table {table} of its replay servers already holds {size} items: start "
                "them afresh, or with another replay.run_id"
            )


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
    for line in _say_returns(system):
        progress.note(line)
    ages = system.server.status().staleness_histogram
    shown = [f"{age}: {number:,}" for age, number in enumerate(ages) if number]
    if shown:
        progress.note(f"accepted gradients by age in updates ({len(ages) - 1}: or more): {', '.join(shown)}")
    progress.note(f"updates: {counts['updates']}")
    progress.note(f"parameters checksum: {digest}")
    progress.stop()
    return TrainResult(
        exit_code=EXIT_CODES[coordinator.reason],
        workdir=str(workdir.path),
        frames=counts["frames"],
        updates=counts["updates"],
        episode_return_mean=None if mean is None else float(mean),
        parameters_checksum=digest,
    )


def _say_returns(system: System) -> list[str]:
    """By exploration where the environments explore differently, else by actor."""
    groups = system.episodes.groups(system.epsilons_at(system.server.status().version))
    if len(groups) > 1:
        return exploration_table(groups)
    return [
        f"actor {actor.actor}: {actor.episodes:,} episodes; the last {actor.recent_episodes} had a mean "
        f"return of {actor.return_mean:.4g} at epsilon {actor.epsilon_mean:.4g}"
        for actor in system.episodes.actors()
    ]


def _start_message(
    config: Config, workdir: Workdir, state: dict[str, Any] | None, replay_directory: str | None
) -> str:
    if state is None:
        return f"starting in {workdir.path}"
    counters = state["counters"]
    replay = "replay is empty: it fills again before learning goes on"
    if replay_directory:
        replay = "with its replay"
    elif config.replay.server_addresses:
        replay = "its replay servers keep what they hold"
    return (
        f"resuming {workdir.path} at {counters['frames']:,} frames, {counters['updates']:,} updates; {replay}"
    )


def _saved_replay(config: Config, workdir: Workdir, saved: tuple[int, Any] | None) -> str | None:
    if saved is None or not config.replay.checkpoint:
        return None
    directory = os.path.join(checkpoints.checkpoint_path(workdir.checkpoints, saved[0]), REPLAY_DIRECTORY)
    return directory if os.path.isdir(directory) else None


def load_initial_parameters(config: Config, spec: EnvironmentSpec) -> Parameters | None:
    """The newest parameters of `run.init_from`; None where that is empty.

    Raises:
      ConfigError: they do not fit the network: other names or shapes, or learned from other inputs.
    """
    workdir = config.run.init_from
    if not workdir:
        return None
    other = load_run(workdir)
    try:
        check_fit(config, spec, other.parameters)
    except ConfigError as error:
        raise ConfigError(f"run.init_from={workdir}: {error}") from error
    if (centered := other.config.network.centered_images) != config.network.centered_images:
        raise ConfigError(
            f"run.init_from={workdir}: its parameters were learned with network.centered_images="
            f"{str(centered).lower()}: set that here, too"
        )
    return other.parameters


@contextlib.contextmanager
def _signals(coordinator: Coordinator) -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into a clean stop; a later one has its usual effect.

    What comes within `SAME_SIGNAL_S` of the first is taken for the same: `timeout` and terminals send one
    to the process and to its group.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first_s: float | None = None
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: types.FrameType | None) -> None:
        nonlocal first_s
        first_s = time.monotonic() if first_s is None else first_s
        if time.monotonic() - first_s > SAME_SIGNAL_S:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        coordinator.stop(signal.Signals(number).name)

    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
