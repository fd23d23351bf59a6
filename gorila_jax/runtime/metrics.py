"""What a run measured, row by row, as a table for programs and as events for TensorBoard.

`COLUMNS` is the only list of what is measured: the header of `metrics.csv`, the tags in TensorBoard and the
names in a row are all taken from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gorila_jax.runtime.csv_table import CsvTable, Value, read_columns
from gorila_jax.types import GorilaError

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
    "episode_return_least_exploring": Column(
        "actor", "game score: mean raw return of the last 25 episodes of the environments with the lowest "
        "quarter of the epsilons; of the last 100 of all where all explore alike"),
    "epsilon_least_exploring": Column("actor", "mean exploration rate of those episodes"),
    "episode_training_reward_mean": Column(
        "actor", "no game score: like episode_return_mean, of the clipped rewards that training sees"),
    "episode_length_mean_steps": Column("actor", "mean length of the last 100 episodes in steps"),
    "epsilon": Column("actor", "exploration rate now, mean over all environments"),
    "parameter_lag_updates": Column("actor", "updates that the actors' parameters are behind, mean"),
    "parameter_lag_updates_max": Column("actor", "the same, of the actor that is furthest behind"),
    "actor_environment_share": Column("actor", "share of the actors' time in the environment, 0 to 1"),
    "actor_policy_share": Column("actor", "share of the actors' time in choosing actions, 0 to 1"),
    "actor_wait_share": Column("actor", "share of the actors' time waiting until replay takes more, 0 to 1"),
    "actor_pull_share": Column("actor", "share of the actors' time waiting for parameters, 0 to 1"),
    "inserts_per_second": Column("replay", "items inserted per second, since the row before"),
    "samples_per_second": Column("replay", "items trained on per second, since the row before"),
    "samples_per_insert": Column(
        "replay", "steps trained on per step inserted, over the whole run; cut sequences count whole"
    ),
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
    "learning_rate": Column("parameter_server", "learning rate of the next update"),
    "staleness_mean": Column(
        "parameter_server", "mean age of the accepted gradients in updates, over the whole run"),
    "gradients_accepted": Column("parameter_server", "gradients applied"),
    "gradients_stale": Column("parameter_server", "gradients refused as too old"),
    "gradients_outlier": Column("parameter_server", "gradients refused as outliers of the loss"),
    "gradients_nonfinite": Column("parameter_server", "gradients refused as not finite"),
    "bottleneck": Column("run", "the part that others wait for: runtime.progress.bottleneck", text=True),
}  # fmt: skip


def tensorboard_tag(name: str) -> str:
    """The tag of column `name`: its role and its name, such as `actor/frames_per_second`."""
    return f"{COLUMNS[name].role}/{name}"


class MetricsWriter:
    """Appends rows to `metrics.csv` and TensorBoard events. Used by one thread. See `CsvTable` for resuming.

    Frames ascend strictly from row to row: a row at the frames of the one before, as happens while the actors
    wait, replaces it.
    """

    def __init__(self, directory: str | os.PathLike[str], resumed_frames: int | None = None) -> None:
        """Opens the files below the workdir `directory`; None or 0 frames starts with no rows.

        Raises:
          GorilaError: the table has columns that are not known, is damaged, or the files cannot be written.
        """
        self._table = CsvTable(Path(directory) / METRICS, COLUMNS, resumed_frames=resumed_frames)
        frames = self._table.resumed("frames")
        self._frames = -1 if frames is None else int(frames)  # of the last row
        self._wall_offset = (
            self._table.resumed("wall_seconds") or 0.0
        )  # seconds of the starts before this one
        self._tensorboard = Path(directory) / TENSORBOARD
        self._closed = False
        try:
            # The plain writer: tensorboardX's usual one queues to a thread, and blocks for ever if the disk
            # was full once. Numbered, because two starts within a second would write to the same file.
            self._tensorboard.mkdir(exist_ok=True)
            number = len(list(self._tensorboard.iterdir()))
            self._events = EventsWriter(str(self._tensorboard / "events"), filename_suffix=f".{number:04d}")
            if number:  # TensorBoard forgets what earlier files say of this step and later ones
                start = SessionLog(status=SessionLog.START)
                self._events.write_event(Event(step=self._frames + 1, session_log=start))
            self._events.flush()
        except OSError as error:
            self._table.close()
            raise self._refused(error) from error

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
        if frames == self._frames:
            self._table.replace_last(full.values())
            return full
        self._table.append([full.values()])
        self._frames = int(frames)
        try:
            self._events.write_event(_event(full))
            self._events.flush()
        except OSError as error:
            raise self._refused(error) from error
        return full

    def close(self) -> None:
        """Closes the files; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        self._table.close()
        try:
            self._events.close()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> GorilaError:
        return GorilaError(f"cannot write TensorBoard events below {self._tensorboard}: {error}")

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except GorilaError:
            if error is None:  # else it is what closing fails of again: a full disk stays full
                raise


def read_metrics(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of a `metrics.csv`, given it or its workdir.

    Returns:
      One array [rows] per column of `COLUMNS`: float64 with NaN where a field is empty, or str for words.

    Raises:
      GorilaError: there is none, it has columns that are not known, or it is damaged.
    """
    path = Path(path)
    words = [name for name, column in COLUMNS.items() if column.text]
    return read_columns(path / METRICS if path.is_dir() else path, COLUMNS, text=words)


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
