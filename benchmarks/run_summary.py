"""What one training run did, read from its workdir."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.runtime.metrics import read_metrics
from gorila_jax.runtime.workdir import VERSIONS
from gorila_jax.types import GorilaError

MAX_POINTS = 300
WINDOW_EPISODES = 100  # that every mean return is taken over, once there are as many


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
        "final_return_least_exploring": _number(metrics["episode_return_least_exploring"][last]),
        "final_epsilon_least_exploring": _number(metrics["epsilon_least_exploring"][last]),
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
    names = (
        "frames", "steps", "updates", "episodes", "episode_return_mean", "episode_epsilon_mean",
        "episode_return_least_exploring", "epsilon_least_exploring",
    )  # fmt: skip
    columns = {name: metrics[name] for name in names} | {"minutes": metrics["wall_seconds"] / 60}
    return {name: [_number(value) for value in values[rows]] for name, values in columns.items()}


def _number(value: float) -> float | None:
    return float(f"{value:.10g}") if math.isfinite(value) else None
