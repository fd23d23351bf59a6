"""Does an actor keep a fleet of slow environments busy?

    python -m benchmarks.scaling

Each environment is a robot of 64 sensors whose step takes 50 ms of wall clock (a real sleep) and no work. A
whole actor drives 1, 4, 16 and 64 of them through the Gymnasium adapter: policy, accumulator and replay
writer, no learner. The efficiency of n is what n of them reach, over n times what one does.

Each robot has a thread, which suits those that wait. `--workers=processes` gives each a process, and tells
what a process weighs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import psutil
from absl import flags

from benchmarks.interleaved import (
    COLUMNS,
    ROUNDS,
    SECONDS,
    Arm,
    Ratio,
    Rounds,
    measure_in_turns,
    measure_speed,
    median_ratios,
    per_second,
    report_medians,
    summary,
    table_rows,
)
from benchmarks.lone_actor import lone_actor
from benchmarks.number_lists import whole_numbers
from benchmarks.report import run
from benchmarks.slow_environment import STEP_S
from gorila_jax.config import Config, fields
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import choose_backend, make_plan
from gorila_jax.types import ConfigError

COUNTS = flags.DEFINE_list("environment_counts", ["1", "4", "16", "64"], "environments of one actor; 1 first")
WORKERS = flags.DEFINE_enum(
    "workers", "threads", fields()["env.gymnasium_workers"].choices, "what an environment runs in"
)
BACKEND = flags.DEFINE_enum(
    "backend", "auto", fields()["replay.backend"].choices, "replay that the actor feeds"
)

ENVIRONMENT = "benchmarks.slow_environment:Robot"
SLEEPS = "sleeps_per_second"


def main() -> None:
    counts = whole_numbers(COUNTS)
    if counts[0] != 1:
        raise ConfigError(
            f"--{COUNTS.name}={','.join(COUNTS.value)}: 1 comes first, the others compare with it"
        )
    starts = {}
    with contextlib.ExitStack() as stack:
        arms: list[Arm] = [sleep_arm]
        for count in counts:
            arm, starts[f"start_{count}"] = start_actor(count, stack)
            arms.append(arm)
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    wanted = ratios_to_take(counts)
    ratios = median_ratios(rounds | bounds(rounds, counts), wanted)
    lines = table_rows(rounds, ratios, wanted)
    for name, values in starts.items():
        lines += [[f"{name} {what}".replace("_", " "), f"{value:,.4g}"] for what, value in values.items()]
    figures: dict[str, Any] = {name: summary(values) for name, values in rounds.items()}
    measured = settings(counts)
    backend = measured["replay_backend"]
    title = (
        f"An actor of robots that take {STEP_S * 1000:g} ms per step, in {WORKERS.value}; replay {backend}"
    )
    report_medians("scaling", title, COLUMNS, lines, ratios, figures | starts, measured)


def make_actor_config(count: int) -> Config:
    overrides = {
        "env.num_environments": count,
        "env.gymnasium_workers": WORKERS.value,
        "replay.backend": BACKEND.value,
    }
    return make_config("dqn", ENVIRONMENT, overrides=overrides)


def sleep_arm(seconds: float) -> dict[str, float]:
    """How often one robot could step if nobody did anything else: the bound of one."""

    def sleep() -> int:
        time.sleep(STEP_S)
        return 1

    return {SLEEPS: per_second(sleep, seconds)}


def start_actor(count: int, stack: contextlib.ExitStack) -> tuple[Arm, dict[str, float]]:
    """An arm that steps an actor of `count` robots, and what it took to have it."""
    plan = make_plan(make_actor_config(count))
    before, begin = {process.pid for process in workers()}, time.perf_counter()
    act = lone_actor(plan, stack)
    act()  # the first step waits until every environment is there
    start: dict[str, float] = {"seconds": time.perf_counter() - begin}
    own = [process for process in workers() if process.pid not in before]
    if own:
        start["worker_megabytes"] = sum(process.memory_full_info().uss for process in own) / len(own) / 1e6
        start["workers_with_jax"] = sum(loaded_jax(process) for process in own)

    def measure(seconds: float) -> dict[str, float]:
        speed = measure_speed(act, seconds, processor_clock=lambda: processor_seconds(own))
        return {
            steps_figure(count): speed.per_second,
            f"environments_{count}_processor_ms_per_step": 1000 * speed.processor_s,
        }

    return measure, start


def processor_seconds(own: Sequence[psutil.Process]) -> float:
    """Of this process and of its workers `own`, so far."""
    times = [process.cpu_times() for process in (psutil.Process(), *own)]
    return sum(each.user + each.system for each in times)


def workers() -> list[psutil.Process]:
    """The processes that run environments: none where threads do."""
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def loaded_jax(process: psutil.Process) -> bool:
    """Whether a worker carries jax, which no environment here has asked for."""
    return any("jaxlib" in mapped.path for mapped in process.memory_maps())


def steps_figure(count: int) -> str:
    return f"environments_{count}_steps_per_second"


def one_times(count: int) -> str:
    return f"one_times_{count}"


def sleeps_times(count: int) -> str:
    return f"sleeps_times_{count}"


def bounds(rounds: Rounds, counts: Sequence[int]) -> dict[str, list[float]]:
    """What so many robots reach when they do as well as one, and when only their own steps take time."""
    return {
        **{one_times(count): [count * value for value in rounds[steps_figure(1)]] for count in counts},
        **{sleeps_times(count): [count * value for value in rounds[SLEEPS]] for count in counts},
    }


def ratios_to_take(counts: Sequence[int]) -> dict[str, Ratio]:
    ratios = {}
    for count in counts:
        if count > 1:
            ratios[f"efficiency_{count}"] = Ratio(steps_figure(count), one_times(count), f"{count} times one")
        ratios[f"of_sleeps_{count}"] = Ratio(steps_figure(count), sleeps_times(count), "their own pace")
    return ratios


def settings(counts: Sequence[int]) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    config = make_actor_config(counts[0])
    return {
        "environment": ENVIRONMENT,
        "step_seconds": STEP_S,
        "workers": WORKERS.value,
        "replay_backend": choose_backend(config),
        "hidden_units": list(config.network.hidden_units),
        "n_steps": config.learner.n_steps,
        "parameter_period_steps": config.actor.parameter_period_steps,
    }


if __name__ == "__main__":
    run(main)
