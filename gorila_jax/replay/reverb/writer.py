"""An actor's streams of rows into one Reverb table."""

from __future__ import annotations

import collections
import contextlib
from typing import Any

from reverb.errors import DeadlineExceededError

from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.signature import check_step
from gorila_jax.replay.table import TableSpec, check_priority
from gorila_jax.types import ReplayError, Step

_CLOSE_TIMEOUT_S = 2.0
_ROWS_PER_STEP = 16  # that streams get at most from one step of an actor, starts and padding included


class ReverbWriter:
    """Implements `types.ReplayWriter`; for one thread. Reverb sends rows and items in a thread of its own.

    All streams share one Reverb writer, their rows interleaved: one connection and one thread instead of one
    for each environment. An item names its rows one by one, so a cut between episodes needs nothing from
    Reverb. Every row is a chunk of its own: an item goes out at once, a row is stored exactly once, and a
    sample moves no rows but its own.
    """

    def __init__(self, connection: Connection, table: TableSpec, number: int, num_streams: int):
        self.inserted_items = 0
        self._connection = connection
        self._table = table
        self._table_name = connection.table_name(number)
        self._closed = False
        self._unconfirmed = False  # whether an item may not have entered the table yet
        self._packing = Packing(table.signature)
        window = table.window_steps
        self._num_rows = 0  # appended so far
        # The numbers of each stream's last W rows since its episode began.
        self._windows: list[collections.deque[int]] = [
            collections.deque(maxlen=window) for _ in range(num_streams)
        ]
        # While a window goes on for W steps, each of the others may begin and end, with W rows, at each one.
        kept = self._kept_rows = min(window, _ROWS_PER_STEP) * (window + 1) * num_streams
        # Rows are checked against the same signature in `append`.
        self._writer = connection.client.trajectory_writer(kept, validate_items=False)
        self._writer.configure((0,), num_keep_alive_refs=kept, max_chunk_length=1)
        self._history: Any = None  # Reverb's references to the rows; there from the first one on

    def append(self, stream: int, step: Step) -> None:
        self._check_open()
        check_step(self._table.signature, step)
        self._writer.append((self._packing.pack(step),))  # copies into its own tensor
        if self._history is None:
            (self._history,) = self._writer.history
        self._windows[stream].append(self._num_rows)
        self._num_rows += 1

    def insert(self, stream: int, priority: float) -> None:
        self._check_open()
        check_priority(priority)
        rows, window = self._windows[stream], self._table.window_steps
        if len(rows) < window:
            raise ReplayError(
                f"an item needs {window} rows, but stream {stream} has {len(rows)} since its episode began"
            )
        if rows[0] < self._num_rows - self._kept_rows:
            raise ReplayError(
                f"{self._num_rows - rows[0]} rows were added while stream {stream} filled a window of "
                f"{window}, but Reverb's writer keeps {self._kept_rows}"
            )
        try:
            self._writer.create_item(self._table_name, priority, (self._history[list(rows)],))
        except (RuntimeError, ValueError) as error:
            raise self._failed(error) from error
        self._unconfirmed = True
        self.inserted_items += 1

    def end_episode(self, stream: int) -> None:
        self._windows[stream].clear()

    def ready(self, timeout_s: float) -> bool:
        """Waits until the server has confirmed every item of this writer, which its limiter may hold back."""
        self._check_open()
        if self._unconfirmed:
            try:
                self._writer.flush(block_until_num_items=0, timeout_ms=max(1, round(1000 * timeout_s)))
            except DeadlineExceededError:
                self._connection.check()
                return False
            except (RuntimeError, ValueError) as error:
                raise self._failed(error) from error
            self._unconfirmed = False
        return True

    def close(self) -> None:
        """Gives what is pending two seconds. It raises nothing, for a dead server is reported elsewhere."""
        if self._closed:
            return
        with contextlib.suppress(ReplayError):
            self.ready(_CLOSE_TIMEOUT_S)
        self._closed = True
        self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("this writer has been closed")
        self._connection.check()

    def _failed(self, error: Exception) -> ReplayError:
        self._connection.check()
        return ReplayError(f"the replay server at {self._connection.address} refused items: {error}")
