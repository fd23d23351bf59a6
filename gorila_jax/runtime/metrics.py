"""What a run measured, row by row, as a table for programs and as events for TensorBoard.

`COLUMNS` is the only list of what is measured: the header of `metrics.csv`, the tags in TensorBoard and the
names in a row are all taken from it.
"""

from __future__ import annotations

import collections
import csv
import io
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.types import Episode, GorilaError

METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"


class Column(NamedTuple):
    """One measurement."""

    role: str  # the part it belongs to: its group in TensorBoard
    description: str  # with its unit
    text: bool = False  # a word and no number: not in TensorBoard


COLUMNS: dict[str, Column] = {
    "time": Column("run", "when the row was written, in seconds since 1970 (UTC)"),
    "wall_seconds": Column("run", "seconds that the run has taken so far, added up over resumes"),
    "frames": Column("run", "emulator frames of all actors, on Atari four per step; rows ascend in it"),
    "steps": Column("run", "steps of all actors: actions taken, ignored actions of resets not counted"),
    "updates": Column("run", "gradients that the parameter server has applied"),
    "episodes": Column("run", "whole games finished by all actors"),
    "frames_per_second": Column("actor", "frames of all actors per second, since the row before"),
    "episode_return_mean": Column(
        "actor", "game score: mean undiscounted raw return of the last 100 episodes of all actors"),
    "episode_epsilon_mean": Column("actor", "mean exploration rate of those 100 episodes"),
    "episode_return_lowest_epsilon": Column(
        "actor", "game score of the environment that explores least, over its last 100 episodes"),
    "lowest_epsilon": Column("actor", "mean exploration rate of those episodes"),
    "episode_training_reward_mean": Column(
        "actor", "no game score: like episode_return_mean, of the clipped rewards that training sees"),
    "episode_length_mean_steps": Column("actor", "mean length of the last 100 episodes in steps"),
    "epsilon": Column("actor", "exploration rate now, mean over all environments"),
    "parameter_lag_updates": Column("actor", "updates that the actors' parameters are behind, mean"),
    "actor_environment_share": Column("actor", "share of the actors' time in the environment, 0 to 1"),
    "actor_policy_share": Column("actor", "share of the actors' time in choosing actions, 0 to 1"),
    "actor_wait_share": Column("actor", "share of the actors' time waiting until replay takes more, 0 to 1"),
    "actor_pull_share": Column("actor", "share of the actors' time waiting for parameters, 0 to 1"),
    "inserts_per_second": Column("replay", "items inserted per second, since the row before"),
    "samples_per_second": Column("replay", "items trained on per second, since the row before"),
    "samples_per_insert": Column("replay", "items trained on per item inserted, over the whole run"),
    "replay_size_items": Column("replay", "items in all tables"),
    "replay_fill_share": Column("replay", "items in all tables over their capacity, 0 to 1"),
    "priorities_written": Column("replay", "priorities that learning changed, since this start of the run"),
    "priorities_evicted": Column("replay", "those that came too late: the item had left replay"),
    "priorities_lost": Column("replay", "those never sent: not finite, or more than the queue held"),
    "updates_per_second": Column("learner", "gradients applied per second, since the row before"),
    "loss": Column("learner", "mean loss of a batch, since the row before"),
    "td_error": Column("learner", "mean absolute temporal-difference error, since the row before"),
    "gradient_norm": Column("learner", "mean global norm of the gradients, unclipped, since the row before"),
    "learner_wait_share": Column("learner", "share of the learners' time waiting for data, 0 to 1"),
    "staleness_mean": Column(
        "parameter_server", "mean age of the accepted gradients in updates, over the whole run"),
    "gradients_accepted": Column("parameter_server", "gradients applied"),
    "gradients_stale": Column("parameter_server", "gradients refused as too old"),
    "gradients_outlier": Column("parameter_server", "gradients refused as outliers of the loss"),
    "gradients_nonfinite": Column("parameter_server", "gradients refused as not finite"),
    "bottleneck": Column("run", "the part that others wait for: runtime.progress.bottleneck", text=True),
}  # fmt: skip

Value = float | int | str | None


def tensorboard_tag(name: str) -> str:
    """The tag of column `name`: its role and its name, such as `actor/frames_per_second`."""
    return f"{COLUMNS[name].role}/{name}"


class MetricsWriter:
    """Appends rows to `metrics.csv` and TensorBoard events. Used by one thread.

    A resumed run takes up at `resumed_frames` (the frames of its checkpoint): later rows are of a future that
    will now happen again, and are cut off in one step. Frames ascend strictly from row to row: a row at the
    frames of the one before, as happens while the actors wait, replaces it. A file that a kill cut short is
    mended.
    """

    def __init__(self, directory: str | os.PathLike[str], resumed_frames: int | None = None) -> None:
        """Opens the files below the workdir `directory`; None or 0 frames starts with no rows.

        Raises:
          GorilaError: the file has other columns, or cannot be written.
        """
        self._path = Path(directory) / METRICS
        self._frames = -1  # of the last row
        self._wall_offset = 0.0  # seconds of the starts before this one
        kept = _read_rows(self._path) if self._path.exists() else []
        kept = [row for row in kept if int(row["frames"]) <= (resumed_frames or 0)]
        if not resumed_frames:
            kept = []
        lines = [_line(COLUMNS), *(_line(row.values()) for row in kept)]
        if kept:
            self._frames = int(kept[-1]["frames"])
            self._wall_offset = float(kept[-1]["wall_seconds"] or 0.0)
        temporary = self._path.with_name(METRICS + ".tmp")
        try:
            temporary.write_text("".join(lines), encoding="utf-8")
            os.replace(temporary, self._path)
            self._file = open(self._path, "r+b", buffering=0)
            self._end = self._file.seek(0, os.SEEK_END)
            self._row_start = self._end - (len(lines[-1].encode()) if kept else 0)
            # The plain writer: tensorboardX's usual one queues to a thread, and blocks for ever if the disk
            # was full once. Numbered, because two starts within a second would write to the same file.
            tensorboard = Path(directory) / TENSORBOARD
            tensorboard.mkdir(exist_ok=True)
            number = len(list(tensorboard.iterdir()))
            self._events = EventsWriter(str(tensorboard / "events"), filename_suffix=f".{number:04d}")
            if number:  # TensorBoard forgets what earlier files say of this step and later ones
                start = SessionLog(status=SessionLog.START)
                self._events.write_event(Event(step=self._frames + 1, session_log=start))
            self._events.flush()
        except OSError as error:
            raise GorilaError(f"cannot write metrics to {self._path}: {error}") from error

    def write(self, row: Mapping[str, Value]) -> dict[str, Value]:
        """Writes one row at once; columns that it lacks or that are None stay empty.

        Args:
          row: values by column name. `frames` is needed; `wall_seconds` counts from this start of the run.

        Returns:
          The row as written: every column, `wall_seconds` over all starts.

        Raises:
          ValueError: a name that is no column, no frames, or frames below those of the row before.
          GorilaError: the disk refused it.
        """
        unknown = sorted(set(row) - set(COLUMNS))
        if unknown:
            raise ValueError(f"no such columns: {unknown}")
        frames = row.get("frames")
        if not isinstance(frames, (int, np.integer)) or frames < self._frames:
            raise ValueError(f"frames={frames} after a row at {self._frames} frames: they only grow")
        full: dict[str, Value] = {name: row.get(name) for name in COLUMNS}
        wall_seconds = full["wall_seconds"]
        if wall_seconds is not None:
            full["wall_seconds"] = float(wall_seconds) + self._wall_offset
        advanced = frames > self._frames
        start = self._end if advanced else self._row_start
        line = _line(_text(value) for value in full.values()).encode()
        try:
            self._file.seek(start)
            rest = memoryview(line)
            while rest:  # unbuffered, so it may take less than all of it
                rest = rest[self._file.write(rest) :]
            self._file.truncate()
            if advanced:
                self._events.write_event(_event(full))
                self._events.flush()
        except OSError as error:
            raise GorilaError(f"cannot write metrics to {self._path}: {error}") from error
        self._frames, self._row_start, self._end = int(frames), start, start + len(line)
        return full

    def close(self) -> None:
        """Closes the files; harmless when repeated."""
        if not self._file.closed:
            self._file.close()
            self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of a `metrics.csv`, given it or its workdir.

    Returns:
      One array [rows] per column: float64 with NaN where a field is empty, or str for words.

    Raises:
      GorilaError: there is none, or it has other columns.
    """
    path = Path(path)
    path = path / METRICS if path.is_dir() else path
    rows = _read_rows(path)
    return {
        name: np.array([row[name] for row in rows], dtype=str)
        if column.text
        else np.array([float(row[name] or "nan") for row in rows], dtype=np.float64)
        for name, column in COLUMNS.items()
    }


def _read_rows(path: Path) -> list[dict[str, str]]:
    """The whole rows of the file as text; a last one cut short is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GorilaError(f"cannot read metrics from {path}: {error}") from error
    table = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if table and table[0] != list(COLUMNS):
        raise GorilaError(f"{path} has other columns than this version of the program writes; move it away")
    return [dict(zip(COLUMNS, fields, strict=True)) for fields in table[1:] if len(fields) == len(COLUMNS)]


def _event(row: Mapping[str, Value]) -> Event:
    """The numbers of `row` for TensorBoard."""
    values = [
        Summary.Value(tag=tensorboard_tag(name), simple_value=float(value))
        for name, value in row.items()
        if value is not None and not COLUMNS[name].text
    ]
    return Event(
        step=int(row["frames"] or 0), wall_time=float(row["time"] or 0.0), summary=Summary(value=values)
    )


def _line(fields: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(list(fields))
    return buffer.getvalue()


def _text(value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    value = float(value)
    return f"{value:.3f}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.7g}"


class ActorSummary(NamedTuple):
    """The share that one actor has in the statistics."""

    actor: int
    episodes: int  # since the run began
    return_mean: float  # over the last 100 episodes of each of its environments
    epsilon_mean: float


class EpisodeStatistics:
    """Collects finished episodes from any thread.

    Scores under exploration depend on how much was explored, so every mean comes with its epsilon (S6).
    """

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._lock = threading.Lock()
        self._totals: dict[int, int] = {}
        self._recent: collections.deque[Episode] = collections.deque(maxlen=window)
        self._by_stream: dict[tuple[int, int], collections.deque[Episode]] = {}

    def add(self, episode: Episode) -> None:
        with self._lock:
            self._totals[episode.actor] = self._totals.get(episode.actor, 0) + 1
            self._remember(episode)

    def _remember(self, episode: Episode) -> None:
        self._recent.append(episode)
        stream = (episode.actor, episode.environment)
        self._by_stream.setdefault(stream, collections.deque(maxlen=self._window)).append(episode)

    def row(self) -> dict[str, Value]:
        """The columns of `COLUMNS` that speak of episodes; None before the first has ended."""
        with self._lock:
            recent, total = list(self._recent), sum(self._totals.values())
            lowest: list[Episode] = []
            if recent:
                stream = min(self._by_stream, key=lambda stream: self._by_stream[stream][-1].epsilon)
                lowest = list(self._by_stream[stream])
        clipped = [episode.training_return for episode in recent if episode.training_return is not None]
        return {
            "episodes": total,
            "episode_return_mean": _mean([episode.episode_return for episode in recent]),
            "episode_epsilon_mean": _mean([episode.epsilon for episode in recent]),
            "episode_return_lowest_epsilon": _mean([episode.episode_return for episode in lowest]),
            "lowest_epsilon": _mean([episode.epsilon for episode in lowest]),
            "episode_training_reward_mean": _mean(clipped),
            "episode_length_mean_steps": _mean([episode.steps for episode in recent]),
        }

    def actors(self) -> list[ActorSummary]:
        """One summary per actor that has finished an episode; their episodes add up to the total."""
        with self._lock:
            summaries = []
            for actor, total in sorted(self._totals.items()):
                own = [
                    episode
                    for stream, episodes in self._by_stream.items()
                    if stream[0] == actor
                    for episode in episodes
                ]
                return_mean = _mean([episode.episode_return for episode in own])
                summaries.append(ActorSummary(actor, total, return_mean, _mean([e.epsilon for e in own])))
            return summaries

    def state(self) -> dict[str, Any]:
        """Totals and the last episodes, for a checkpoint.

        Returns:
          totals: episodes by actor; recent, streams: [episodes, fields of Episode] float64, NaN for None.
        """
        with self._lock:
            by_stream = [episode for episodes in self._by_stream.values() for episode in episodes]
            return {
                "totals": {str(actor): total for actor, total in self._totals.items()},
                "recent": _table(self._recent),
                "streams": _table(by_stream),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        with self._lock:
            self._totals = {int(actor): int(total) for actor, total in state["totals"].items()}
            self._by_stream.clear()
            for episode in _episodes(state["streams"]):
                self._remember(episode)
            self._recent.clear()
            self._recent.extend(_episodes(state["recent"]))


def _table(episodes: Iterable[Episode]) -> np.ndarray:
    rows = [[math.nan if field is None else float(field) for field in episode] for episode in episodes]
    return np.array(rows, np.float64).reshape(len(rows), len(Episode._fields))


def _episodes(table: np.ndarray) -> list[Episode]:
    return [
        Episode(
            int(actor), int(environment), value, int(steps), epsilon, None if np.isnan(clipped) else clipped
        )
        for actor, environment, value, steps, epsilon, clipped in table.tolist()
    ]


def _mean(values: Sequence[float]) -> Any:
    return float(np.mean(values)) if values else None


def plot_learning_curve(
    workdir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out_png: str | os.PathLike[str]
) -> None:
    """Draws the game score of one or several runs over frames and over minutes into `out_png`.

    Raises:
      GorilaError: a workdir has no metrics or no finished episode.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [workdir] if isinstance(workdir, (str, os.PathLike)) else list(workdir)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_frames, by_minutes = figure.subplots(1, 2, sharey=True)
    environments: list[str] = []
    for path in paths:
        experiment, metrics = load_experiment(path), read_metrics(path)
        known = np.isfinite(metrics["episode_return_mean"])
        if not known.any():
            raise GorilaError(f"{path} has no finished episode to plot")
        score = metrics["episode_return_mean"][known]
        label = f"{experiment.get('agent')}, seed {experiment.get('run', {}).get('seed')}"
        by_frames.plot(metrics["frames"][known], score, label=label)
        by_minutes.plot(metrics["wall_seconds"][known] / 60, score, label=label)
        if (name := str(experiment.get("environment"))) not in environments:
            environments.append(name)
    by_frames.set_xlabel("frames of all actors")
    by_frames.xaxis.set_major_formatter(lambda value, _: _short(value))
    by_minutes.set_xlabel("minutes since the start")
    by_frames.set_ylabel("raw return per episode\n(mean of the last 100, while exploring)")
    for axes in (by_frames, by_minutes):
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{', '.join(environments)}: game score during training")
    figure.savefig(out_png, dpi=120)


def _short(value: float) -> str:
    """12 000 000 as 12M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
