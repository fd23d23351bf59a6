"""An actor's streams of rows into one Reverb table."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from reverb import pybind
from reverb.errors import DeadlineExceededError

from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.signature import check_steps, one_row
from gorila_jax.replay.table import TableSpec, check_priority, check_state
from gorila_jax.types import NO_STATE, ReplayError, Step

_CLOSE_TIMEOUT_S = 2.0
_MANY_ITEMS = 48  # on their way: from 64 on Reverb writes a warning for each
_PAUSE_MS = 100
_STREAMS_PER_CHANNEL = 32  # what an item costs Reverb's writer grows with the rows that it keeps


class ReverbWriter:
    """Implements `types.ReplayWriter`; for one thread. Reverb sends rows and items in threads of its own.

    Up to 32 streams share one Reverb writer, their rows interleaved: one connection and one thread instead of
    one for each environment. An item names its rows one by one, so a cut between episodes needs nothing from
    Reverb. Every row is a chunk of its own: an item goes out at once, a row is stored once (or again, with a
    window that has fallen out), and a sample moves no rows but its own. So is every recurrent state.
    """

    def __init__(self, connection: Connection, table: TableSpec, number: int, num_streams: int):
        self.inserted_items = 0
        self._connection = connection
        self._table = table
        self._table_name = connection.table_name(number)
        self._closed = False
        self._packing = Packing(table.signature)
        # Each stream's last W rows since its episode began.
        self._windows: list[collections.deque[_Row]] = [
            collections.deque(maxlen=table.window_steps) for _ in range(num_streams)
        ]
        self._channels = [
            _Channel(connection.client, table, min(_STREAMS_PER_CHANNEL, num_streams - first))
            for first in range(0, num_streams, _STREAMS_PER_CHANNEL)
        ]

    def append(self, stream: int, step: Step) -> None:
        self.append_each([stream], one_row(step))

    def append_each(self, streams: Sequence[int], steps: Step) -> None:
        self._check_open()
        check_steps(self._table.signature, steps, len(streams))
        for stream, row in zip(streams, self._packing.pack(steps), strict=True):
            channel = self._channels[stream // _STREAMS_PER_CHANNEL]
            self._windows[stream].append(channel.append(row))

    def insert(self, stream: int, priority: float, state: np.ndarray = NO_STATE) -> None:
        self._check_open()
        check_priority(priority)
        check_state(self._table, state)
        rows, window = self._windows[stream], self._table.window_steps
        if len(rows) < window:
            raise ReplayError(
                f"an item needs {window} rows, but stream {stream} has {len(rows)} since its episode began"
            )
        channel = self._channels[stream // _STREAMS_PER_CHANNEL]
        try:
            if not channel.keeps(rows[0]):
                # Others have ended episode after episode, and Reverb lets go of rows of this window.
                rows.extend([channel.append(row.packed) for row in rows])
            channel.insert(self._table_name, priority, [row.reference for row in rows], state)
        except (RuntimeError, ValueError) as error:
            raise self._failed(error) from error
        self.inserted_items += 1

    def end_episode(self, stream: int) -> None:
        self._windows[stream].clear()

    def ready(self, timeout_s: float) -> bool:
        """Waits until the server has confirmed every item of this writer, which its limiter may hold back."""
        self._check_open()
        clock = time.monotonic  # noqa: TID251, one timeout is shared by several calls
        deadline = clock() + timeout_s
        for channel in self._channels:
            try:
                channel.flush(max(1, round(1000 * (deadline - clock()))))
            except DeadlineExceededError:
                self._connection.check()
                return False
            except (RuntimeError, ValueError) as error:
                raise self._failed(error) from error
        return True

    def close(self) -> None:
        """Gives what is pending two seconds. It raises nothing, for a dead server is reported elsewhere."""
        if self._closed:
            return
        with contextlib.suppress(ReplayError):
            self.ready(_CLOSE_TIMEOUT_S)
        self._closed = True
        for channel in self._channels:
            channel.writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("this writer has been closed")
        self._connection.check()

    def _failed(self, error: Exception) -> ReplayError:
        self._connection.check()
        return ReplayError(f"the replay server at {self._connection.address} refused items: {error}")


class _Row(NamedTuple):
    number: int  # of those that its channel has been given
    reference: Any  # Reverb's, which expires when Reverb lets go of the row
    packed: np.ndarray


class _Channel:
    """One Reverb writer, by its compiled half.

    The Python around that looks for the columns of every row in a nested structure, and keeps a history of
    them, which takes longer than everything else that is done with a row.
    """

    def __init__(self, client: Any, table: TableSpec, num_streams: int):
        # Enough that while a window goes on each of the others may end one episode and begin the next, with
        # padding and a first stack. Beyond that, windows are sent again.
        self._kept_rows = kept_rows = 2 * (table.window_steps + 1) * num_streams
        # Rows are checked against the same signature before they come here.
        self.writer = client.trajectory_writer(kept_rows, validate_items=False)
        self._compiled = self.writer._writer
        self._num_columns = 2 if table.state_size else 1  # rows and states
        for column in range(self._num_columns):
            options = pybind.ConstantChunkerOptions(max_chunk_length=1, num_keep_alive_refs=kept_rows)
            self._compiled.ConfigureChunker(column, options)
        self._appended_rows = 0
        self._unconfirmed = 0  # items that may not have entered the table yet

    def append(self, row: np.ndarray) -> _Row:
        """Adds the bytes of one row, which Reverb copies."""
        reference = self._compiled.Append([row, None][: self._num_columns])[0]
        self._appended_rows += 1
        return _Row(self._appended_rows, reference, row)

    def keeps(self, row: _Row) -> bool:
        """Whether Reverb is bound to keep the row. Its reference cannot tell: an item on its way keeps a row
        too, and lets go of it in a thread of Reverb's, at any moment."""
        return self._appended_rows - row.number < self._kept_rows

    def insert(self, table_name: str, priority: float, rows: list[Any], state: np.ndarray) -> None:
        columns = [rows]
        if self._num_columns == 2:
            columns.append([self._compiled.Append([None, state])[1]])
        self._compiled.CreateItem(table_name, priority, columns, [False] * len(columns))
        self._unconfirmed += 1
        if self._unconfirmed % _MANY_ITEMS == 0:  # many episodes have ended at once: time to send them
            with contextlib.suppress(DeadlineExceededError):  # `ready` will say who holds them back
                self.writer.flush(block_until_num_items=0, timeout_ms=_PAUSE_MS)

    def flush(self, timeout_ms: int) -> None:
        if self._unconfirmed:
            self.writer.flush(block_until_num_items=0, timeout_ms=timeout_ms)
            self._unconfirmed = 0
