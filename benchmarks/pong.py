"""How many minutes until Pong is solved on this machine?

    python -m benchmarks.pong --seeds=1,2,3 --results=benchmarks/results

Trains in a process of its own, exactly as `python -m launchers.train` does, and scores checkpoints beside it,
on the same cores: whole games with up to 30 no-ops at their start, epsilon 0.01. An evaluation that reaches
the goal is confirmed at once: the same checkpoint is scored again with other seeds, so that the figure
reported is not the luck of the one that was picked. Where that falls short, training goes on. The clock runs
from the start of the training process to the end of the confirmation. When the first evaluation reached the
goal, and what its own confirmation said, is reported as well.

Writes `<results>/pong_seed_<seed>.json` (curve, evaluations, memory, threads and file descriptors of the
training process), `.png` and `.mp4`.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from absl import flags

from benchmarks import programs
from benchmarks.number_lists import whole_numbers
from benchmarks.report import make_table, report, run
from benchmarks.road_flags import AGENT, ENVIRONMENT
from benchmarks.run_summary import summarise
from benchmarks.training_flags import DIRECTORY, RESULTS, SEEDS, TRAIN_FLAGS
from gorila_jax.checkpoints import list_checkpoints
from gorila_jax.evaluation.saved_run import CHECKPOINTS
from gorila_jax.runtime.episodes import EPISODES as EPISODES_FILE
from gorila_jax.runtime.episodes import read_episodes
from gorila_jax.runtime.metrics import METRICS, read_metrics
from gorila_jax.types import ConfigError, GorilaError

GOAL = flags.DEFINE_float("goal", 18.0, "mean return of an evaluation that ends the run")
MAX_MINUTES = flags.DEFINE_float("max_minutes", 60.0, "after which the run ends without having reached it", 0)
EPISODES = flags.DEFINE_integer("episodes", 30, "games of an evaluation", 1)
EVALUATE_FROM = flags.DEFINE_float(
    "evaluate_from", 14.0, "mean of the last ten training games of little exploration that begins evaluations"
)
PAUSE_MINUTES = flags.DEFINE_float("pause_minutes", 1.0, "from the end of an evaluation to the next one", 0)

EPSILON = 0.01
CHECKPOINT_SECONDS = 30.0
KEPT_CHECKPOINTS = 10
POLL_S = 2.0
CONFIRMATION = 500  # the seeds of evaluations begin with 1, those of their confirmations with this
LITTLE_EXPLORATION = 0.05
RECENT_GAMES = 10


class Usage(NamedTuple):
    """What the training process held at one moment."""

    minutes: float
    resident_bytes: int
    threads: int
    file_descriptors: int
    replay_fill_share: float


def main() -> None:
    seeds = whole_numbers(SEEDS)
    directory = Path(DIRECTORY.value or tempfile.mkdtemp(prefix="gorila_pong_"))
    if DIRECTORY.value and directory.exists():
        raise ConfigError(f"--directory={directory} exists already, and this measures runs from their start")
    directory.mkdir(parents=True, exist_ok=True)
    runs = {seed: solve(seed, directory / f"seed_{seed}") for seed in seeds}
    solved = all(run["minutes_to_goal"] is not None for run in runs.values())
    figures = {
        "minutes_to_18" if GOAL.value == 18 else "minutes_to_goal": (
            max(run["minutes_to_goal"] for run in runs.values()) if solved else None
        ),
        "mean_return": min(run["mean_return"] for run in runs.values()) if solved else None,
        "seeds": {str(seed): figures for seed, figures in runs.items()},
    }
    shown = (
        "minutes_to_goal",
        "mean_return",
        "frames",
        "updates",
        "evaluations",
        "not_confirmed",
        "resident_growth_since_full",
    )
    rows = [
        [f"seed {seed}", *("" if run[name] is None else f"{run[name]:,.4g}" for name in shown)]
        for seed, run in runs.items()
    ]
    ratios = {
        f"seed_{seed}_{name}": run[name]
        for seed, run in runs.items()
        for name in ("samples_per_insert_of_asked", "resident_growth_since_full")
        if run[name] is not None
    }
    title = f"{agent()} on {ENVIRONMENT.value}, to {GOAL.value:g}: the runs are in {directory}"
    report(
        "pong", make_table(title, ("run", *(name.replace("_", " ") for name in shown)), rows), ratios, figures
    )


def agent() -> str:
    return AGENT.value or "apex"


def solve(seed: int, workdir: Path) -> dict[str, Any]:
    """One run: its figures, and its files where they are wanted."""
    evaluations, usage = train_to_goal(seed, workdir)
    summary = summarise(workdir)
    asked = summary["configuration"]["replay"]["samples_per_insert"]
    figures = {
        **goal_figures(evaluations),
        "frames": summary["frames"],
        "updates": summary["updates"],
        "samples_per_insert_of_asked": summary["samples_per_insert"] / asked if asked else None,
        **usage_figures(usage),
    }
    if RESULTS.value:
        write_files(Path(RESULTS.value), seed, workdir, summary, evaluations, usage, figures)
    return figures


def goal_figures(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """When a run reached the goal: for the first time, and with a checkpoint that other seeds confirmed."""
    at_goal = [evaluation for evaluation in evaluations if evaluation["confirmation"] is not None]
    first = at_goal[0] if at_goal else None
    confirmed = next(filter(is_confirmed, at_goal), None)
    return {
        "minutes_to_goal": confirmed["confirmation"]["minutes"] if confirmed else None,
        "mean_return": confirmed["confirmation"]["mean"] if confirmed else None,
        "first_at_goal_minutes": first["minutes"] if first else None,
        "first_at_goal_confirmation": first["confirmation"]["mean"] if first else None,
        "best_mean_return": max((evaluation["mean"] for evaluation in evaluations), default=None),
        "evaluations": len(evaluations),
        "not_confirmed": len(at_goal) - (confirmed is not None),
    }


def train_to_goal(seed: int, workdir: Path) -> tuple[list[dict[str, Any]], list[Usage]]:
    """Runs until an evaluation reaches the goal or the time is over; all evaluations, and what was used."""
    command = [
        sys.executable,
        "-m",
        "launchers.train",
        f"--agent={agent()}",
        f"--environment={ENVIRONMENT.value}",
        f"--seed={seed}",
        f"--workdir={workdir}",
        f"--config.checkpoint.period_seconds={CHECKPOINT_SECONDS}",
        f"--config.checkpoint.keep={KEPT_CHECKPOINTS}",
        *TRAIN_FLAGS.value,
    ]
    evaluations: list[dict[str, Any]] = []
    usage: list[Usage] = []
    start = time.monotonic()
    log = workdir.parent / f"{workdir.name}.log"
    with open(log, "w", encoding="utf-8") as output:
        training = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        watched = psutil.Process(training.pid)
        last_end = start
        try:
            while (minutes := (time.monotonic() - start) / 60) < MAX_MINUTES.value:
                if training.poll() is not None:
                    raise GorilaError(
                        f"training ended with code {training.returncode}; its output is in {log}"
                    )
                time.sleep(POLL_S)
                score, fill = progress_of(workdir)
                usage.append(usage_of(watched, minutes, fill))
                frames = max(list_checkpoints(str(workdir / CHECKPOINTS)), default=0)
                seen = evaluations[-1]["frames_trained"] if evaluations else 0
                rested = time.monotonic() - last_end >= 60 * PAUSE_MINUTES.value
                if score < EVALUATE_FROM.value or frames <= seen or not rested:
                    continue
                evaluations.append(score_checkpoint(workdir, frames, seed, len(evaluations), start))
                last_end = time.monotonic()
                if is_confirmed(evaluations[-1]):
                    break
        finally:
            if training.poll() is None:
                training.send_signal(signal.SIGTERM)
            training.wait()
    return evaluations, usage


def score_checkpoint(workdir: Path, frames: int, seed: int, number: int, start: float) -> dict[str, Any]:
    """An evaluation and, where it reaches the goal, its confirmation, each with the minutes since `start`."""
    first = 1_000 * seed + number
    record = timed(evaluate(workdir, frames, first + 1), start)
    again = timed(evaluate(workdir, frames, first + CONFIRMATION), start) if reaches_goal(record) else None
    for said, each in (("mean", record), ("again, with other seeds, mean", again)):
        if each is not None:
            print(
                f"{each['minutes']:.1f} minutes, {frames:,} frames: {said} {each['mean']:.2f}",
                file=sys.stderr,
                flush=True,
            )
    return record | {"confirmation": again}


def timed(record: dict[str, Any], start: float) -> dict[str, Any]:
    return record | {"minutes": (time.monotonic() - start) / 60}


def reaches_goal(record: Mapping[str, Any]) -> bool:
    return bool(record["mean"] >= GOAL.value)


def is_confirmed(evaluation: Mapping[str, Any]) -> bool:
    return evaluation["confirmation"] is not None and reaches_goal(evaluation["confirmation"])


def evaluate(workdir: Path, frames: int, seed: int) -> dict[str, Any]:
    """All games at once, each to its end."""
    number = EPISODES.value
    options = f"--num_environments={number}", f"--epsilon={EPSILON}"
    return programs.evaluate(workdir, frames, number, seed, *options)


def progress_of(workdir: Path) -> tuple[float, float]:
    """(mean of the last ten training games of little exploration, share of replay that is full)."""
    if not (workdir / METRICS).exists() or not (workdir / EPISODES_FILE).exists():
        return -np.inf, 0.0
    fill, games = read_metrics(workdir)["replay_fill_share"], read_episodes(workdir)
    returns = games["episode_return"][games["epsilon"] <= LITTLE_EXPLORATION][-RECENT_GAMES:]
    score = float(np.mean(returns)) if len(returns) == RECENT_GAMES else -np.inf
    return score, float(fill[-1]) if fill.size else 0.0


def usage_of(process: psutil.Process, minutes: float, fill: float) -> Usage:
    with process.oneshot():
        return Usage(
            minutes, process.memory_info().rss, process.num_threads(), process.num_fds(), round(fill, 4)
        )


def usage_figures(usage: Sequence[Usage]) -> dict[str, Any]:
    """How memory, threads and file descriptors grew once replay was full: last tenth over first tenth."""
    full = [moment for moment in usage if moment.replay_fill_share >= 1]
    tenth = len(full) // 10
    if not tenth:
        return {"resident_growth_since_full": None}
    first, last = full[:tenth], full[-tenth:]

    def growth(name: str) -> float:
        return statistics.median(getattr(m, name) for m in last) / statistics.median(
            getattr(m, name) for m in first
        )

    return {
        "resident_gigabytes": statistics.median(moment.resident_bytes for moment in last) / 1e9,
        "resident_growth_since_full": growth("resident_bytes"),
        "threads_growth_since_full": growth("threads"),
        "file_descriptors_growth_since_full": growth("file_descriptors"),
    }


def write_files(
    out: Path,
    seed: int,
    workdir: Path,
    summary: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    usage: Sequence[Usage],
    figures: Mapping[str, Any],
) -> None:
    """The record, the picture and, of the checkpoint that was confirmed, a game."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"pong_seed_{seed}"
    record = {
        "figures": dict(figures),
        "run": dict(summary),
        "evaluations": [dict(evaluation) for evaluation in evaluations],
        "usage": {
            field: [getattr(moment, field) for moment in usage[:: max(1, len(usage) // 200)]]
            for field in Usage._fields
        },
    }
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(seed, workdir, evaluations, out / f"{name}.png")
    if figures["minutes_to_goal"] is not None:
        film = f"--video={out / name}.mp4", f"--checkpoint={evaluations[-1]['frames_trained']}"
        programs.program("play", f"--workdir={workdir}", *film, f"--epsilon={EPSILON}", "--overwrite")


def plot(seed: int, workdir: Path, evaluations: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = read_metrics(workdir)
    minutes = metrics["wall_seconds"] / 60
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(minutes, metrics["episode_return_mean"], label="training, all environments", color="tab:gray")
    axes.plot(minutes, metrics["episode_return_least_exploring"], label="training, those that explore least")
    axes.plot(
        [evaluation["minutes"] for evaluation in evaluations],
        [evaluation["mean"] for evaluation in evaluations],
        "o-",
        color="tab:red",
        label=f"evaluation of {EPISODES.value} games, ε {EPSILON}",
    )
    axes.axhline(GOAL.value, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("minutes since the start of the process")
    axes.set_ylabel("raw return per game")
    axes.set_title(f"{agent()} on {ENVIRONMENT.value}, seed {seed}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run(main)
