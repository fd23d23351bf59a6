"""Learning curves over wall-clock time, ours and those that the drivers' lines tell, in one form."""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.record import PERIOD_S
from gorila_jax.runtime.metrics import read_metrics

WINDOW_EPISODES = 100
MAX_POINTS = 61  # of a curve in the record: one every half minute of half an hour
MAX_BINS = 60  # of the frames per second in the picture
BIN_S = 60.0

Curve = Mapping[str, np.ndarray]
"""Float arrays [rows] by name, seconds ascending, NaN where nothing is known yet.

seconds, frames, updates, episodes: so far; return_mean, epsilon_mean: over the last `WINDOW_EPISODES` whole
games until then, raw scores, and the exploration that they were played with.
"""

COLUMNS = {  # ours by the names of `metrics.csv`
    "seconds": "wall_seconds",
    "frames": "frames",
    "updates": "updates",
    "episodes": "episodes",
    "return_mean": "episode_return_mean",
    "epsilon_mean": "episode_epsilon_mean",
}


class Story(NamedTuple):
    """A driver's lines."""

    curve: Curve
    settings: dict[str, Any]
    versions: dict[str, str]


def read_lines(lines: Iterable[str]) -> Story:
    """What a driver wrote (`record`). What others printed there, and a last line cut short, are skipped."""
    games: collections.deque[tuple[float, float]] = collections.deque(maxlen=WINDOW_EPISODES)
    episodes = 0
    rows: list[list[float]] = []
    start: dict[str, Any] = {}
    for line in _records(lines):
        if line["kind"] == "start":
            start = line
        elif line["kind"] == "episode":
            episodes += 1
            games.append((line["return"], line["epsilon"]))
        elif line["kind"] == "progress":
            means = np.mean(games, axis=0) if games else (math.nan, math.nan)
            rows.append([line["seconds"], line["frames"], line["updates"], episodes, *means])
    columns = np.array(rows, np.float64).reshape(len(rows), len(COLUMNS)).T
    curve = dict(zip(COLUMNS, columns, strict=True))
    return Story(curve, start.get("settings", {}), start.get("versions", {}))


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "kind" in record:
            yield record


def read_workdir(workdir: str | os.PathLike[str]) -> Curve:
    """Of a training run of ours. Raises GorilaError when it has no metrics."""
    metrics = read_metrics(workdir)
    return {name: metrics[ours] for name, ours in COLUMNS.items()}


def cut(curve: Curve, minutes: float) -> Curve:
    """Its rows of the first so many minutes, and the one that is due when they end."""
    kept = curve["seconds"] <= 60 * minutes + PERIOD_S
    return {name: values[kept] for name, values in curve.items()}


def summarise(curve: Curve) -> dict[str, Any]:
    """JSON values, None where nothing is known. Learning figures start at the first row with an update.

    The best mean is taken over rows of the full `WINDOW_EPISODES` games, or over all if none has so many.
    """
    if not len(curve["seconds"]):
        return {"minutes": 0.0, "frames": 0, "updates": 0, "episodes": 0, "frames_per_second": None}
    seconds, frames, updates = curve["seconds"], curve["frames"], curve["updates"]
    known = np.flatnonzero(np.isfinite(curve["return_mean"]))
    full = known[curve["episodes"][known] >= WINDOW_EPISODES]
    candidates = full if full.size else known
    best = max(candidates, key=lambda row: curve["return_mean"][row]) if known.size else -1
    learning = np.flatnonzero(updates > 0)
    since = learning[0] if learning.size else -1
    episodes = int(curve["episodes"][-1])
    return {
        "minutes": _number(seconds[-1] / 60),
        "frames": int(frames[-1]),
        "updates": int(updates[-1]),
        "episodes": episodes,
        "frames_per_second": _rate(seconds, frames, 0, from_zero=True),
        "learning_since_minutes": _number(seconds[since] / 60) if learning.size else None,
        "learning_frames_per_second": _rate(seconds, frames, since),
        "learning_updates_per_second": _rate(seconds, updates, since),
        "final_return_mean": _number(curve["return_mean"][-1]),
        "final_epsilon_mean": _number(curve["epsilon_mean"][-1]),
        "final_window_episodes": min(WINDOW_EPISODES, episodes),
        "best_return_mean": _number(curve["return_mean"][best]),
        "best_at_minutes": _number(seconds[best] / 60) if known.size else None,
    }


def _rate(seconds: np.ndarray, counts: np.ndarray, row: int, from_zero: bool = False) -> float | None:
    """Per second from `row`, or from 0 at 0 seconds, to the last row."""
    start_s, start = (0.0, 0.0) if from_zero else (seconds[row], counts[row])
    passed_s = seconds[-1] - start_s
    return _number((counts[-1] - start) / passed_s) if passed_s > 0 else None


def thin(curve: Curve) -> dict[str, list[float | None]]:
    """At most MAX_POINTS rows, evenly chosen, first and last among them; None where nothing is known."""
    size = len(curve["seconds"])
    rows = np.unique(np.linspace(0, size - 1, min(size, MAX_POINTS)).round().astype(int))
    return {name: [_number(value) for value in values[rows]] for name, values in curve.items()}


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def frames_per_second(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Minutes [bins] and the frames per second [bins] around them; bins of a minute, less in a short run."""
    seconds = np.concatenate([[0.0], curve["seconds"]])
    frames = np.concatenate([[0.0], curve["frames"]])
    if seconds[-1] <= 0:
        return np.empty(0), np.empty(0)
    bins = int(np.clip(seconds[-1] / BIN_S, min(10, len(seconds) - 1), MAX_BINS))
    edges = np.linspace(0, seconds[-1], bins + 1)
    counted = np.interp(edges, seconds, frames)
    return (edges[:-1] + edges[1:]) / 2 / 60, np.diff(counted) / np.diff(edges)


def plot(curves: Mapping[str, Curve], title: str, path: str | os.PathLike[str]) -> None:
    """Draws score and frames per second over minutes, by label. A curve without rows is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    scores, speeds = figure.subplots(1, 2)
    drawn: Sequence[tuple[str, Curve]] = [(label, c) for label, c in curves.items() if len(c["seconds"])]
    for label, curve in drawn:
        scores.plot(curve["seconds"] / 60, curve["return_mean"], label=label)
        speeds.plot(*frames_per_second(curve), label=label)
    scores.set_ylabel(f"raw return per game\n(mean of the last {WINDOW_EPISODES}, while exploring)")
    speeds.set_ylabel("emulator frames per second")
    speeds.set_ylim(bottom=0)
    for axes in (scores, speeds):
        axes.set_xlabel("minutes of wall-clock time")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        if drawn:
            axes.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
