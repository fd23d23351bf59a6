"""Turns training workdirs into a picture and a record of how they learned.

    python -m benchmarks.learning_curve --workdir=runs/dqn,runs/gorila --name=pong --out=benchmarks/results

writes `<out>/<name>.png` (game score over frames and over minutes) and `<out>/<name>.json` (per run its
configuration, versions, curve and results). Every score is a raw return of training games, played while
exploring.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.report import make_table, report, run
from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.runtime.metrics import plot_learning_curve, read_metrics
from gorila_jax.runtime.workdir import VERSIONS
from gorila_jax.types import ConfigError, GorilaError

WORKDIR = flags.DEFINE_list("workdir", [], "workdirs of training runs, separated by commas")
NAME = flags.DEFINE_string("name", "learning_curve", "of the files to write")
OUT = flags.DEFINE_string("out", "benchmarks/results", "directory to write them in")

MAX_POINTS = 300
WINDOW_EPISODES = 100  # that every mean return is taken over, once there are as many


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir names no training run")
    runs = [summarise(Path(workdir)) for workdir in WORKDIR.value]
    out = Path(OUT.value)
    try:
        out.mkdir(parents=True, exist_ok=True)
        plot_learning_curve(WORKDIR.value, out / f"{NAME.value}.png")
        record = json.dumps({"name": NAME.value, "runs": runs}, indent=1, allow_nan=False)
        (out / f"{NAME.value}.json").write_text(record + "\n", encoding="utf-8")
    except OSError as error:
        raise GorilaError(f"cannot write to --out={out}: {error}") from error
    labels = [f"{run['workdir']}: {run['configuration']['agent']}" for run in runs]
    rows = [
        [
            label,
            f"{run['frames']:,}",
            f"{run['updates']:,}",
            f"{run['minutes']:.1f}",
            _shown(run["samples_per_insert"]),
            _shown(run["final_return_mean"]),
            _shown(run["best_return_mean"]),
        ]
        for label, run in zip(labels, runs, strict=True)
    ]
    columns = ("run", "frames", "updates", "minutes", "samples/insert", "final mean", "best mean")
    long = ("curve", "configuration", "versions")
    figures = {
        label: {name: value for name, value in run.items() if name not in long}
        for label, run in zip(labels, runs, strict=True)
    }
    ratios = {
        f"{label}: samples per insert": run["samples_per_insert"]
        for label, run in zip(labels, runs, strict=True)
        if run["samples_per_insert"] is not None
    }
    title = f"{NAME.value}: mean raw returns of {WINDOW_EPISODES} training episodes; curves in {out}"
    report("learning_curve", make_table(title, columns, rows), ratios, figures)


def summarise(workdir: Path) -> dict[str, Any]:
    """What one run did, as JSON values. Raises GorilaError when it has no metrics or no finished episode.

    `best_return_mean` is taken over rows that average the full 100 episodes, or over all rows if none does.
    """
    configuration = load_experiment(workdir)
    metrics = read_metrics(workdir)
    returns, episodes = metrics["episode_return_mean"], metrics["episodes"]
    known = np.flatnonzero(np.isfinite(returns))
    if not known.size:
        raise GorilaError(f"{workdir} has no finished episode to show")
    last = known[-1]
    full = known[episodes[known] >= WINDOW_EPISODES]
    best = max(full if full.size else known, key=lambda row: returns[row])
    versions = workdir / VERSIONS
    return {
        "workdir": workdir.resolve().name,
        "configuration": configuration,
        "versions": json.loads(versions.read_text(encoding="utf-8")) if versions.exists() else [],
        "frames": int(metrics["frames"][-1]),
        "steps": int(metrics["steps"][-1]),
        "updates": int(metrics["updates"][-1]),
        "minutes": float(metrics["wall_seconds"][-1] / 60),
        "episodes": int(episodes[-1]),
        "samples_per_insert": _number(metrics["samples_per_insert"][-1]),
        "final_return_mean": float(returns[last]),
        "final_epsilon_mean": _number(metrics["episode_epsilon_mean"][last]),
        "final_window_episodes": int(min(WINDOW_EPISODES, episodes[last])),
        "best_return_mean": float(returns[best]),
        "best_window_episodes": int(min(WINDOW_EPISODES, episodes[best])),
        "best_at_frames": int(metrics["frames"][best]),
        "curve": curve(metrics),
    }


def curve(metrics: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    """At most MAX_POINTS rows, evenly chosen, first and last among them; None where a field is empty."""
    size = len(metrics["frames"])
    rows = np.unique(np.linspace(0, size - 1, min(size, MAX_POINTS)).round().astype(int))
    names = ("frames", "steps", "updates", "episodes", "episode_return_mean", "episode_epsilon_mean")
    columns = {name: metrics[name] for name in names} | {"minutes": metrics["wall_seconds"] / 60}
    return {name: [_number(value) for value in values[rows]] for name, values in columns.items()}


def _number(value: float) -> float | None:
    return float(f"{value:.10g}") if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    run(main)
