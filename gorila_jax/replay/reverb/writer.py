"""An actor's streams of rows into one Reverb table."""

from __future__ import annotations

import contextlib
import time

from reverb.errors import DeadlineExceededError

from gorila_jax.replay.reverb.columns import Columns
from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.signature import check_step
from gorila_jax.replay.table import TableSpec, check_priority
from gorila_jax.types import ReplayError, Step

_CLOSE_TIMEOUT_S = 2.0


class ReverbWriter:
    """Implements `types.ReplayWriter`; for one thread. Reverb sends rows and items in threads of its own.

    Every row is a chunk of its own: an item goes out at once, a row is stored exactly once, and a sample
    moves no rows but its own. So a cut between episodes needs nothing from Reverb: a count does it.
    """

    def __init__(self, connection: Connection, table: TableSpec, number: int, num_streams: int):
        self.inserted_items = 0
        self._connection = connection
        self._table = table
        self._table_name = connection.table_name(number)
        self._closed = False
        self._rows = [0] * num_streams  # of each stream since its episode began
        self._unconfirmed: set[int] = set()  # streams with items that may not have entered the table yet
        window = table.window_steps
        self._columns = Columns(table.signature)
        self._writers = []
        for _ in range(num_streams):
            # Rows are checked against the same signature in `append`.
            writer = connection.client.trajectory_writer(window, validate_items=False)
            for index in range(len(self._columns.specs)):
                writer.configure((index,), num_keep_alive_refs=window, max_chunk_length=1)
            self._writers.append(writer)

    def append(self, stream: int, step: Step) -> None:
        self._check_open()
        check_step(self._table.signature, step)
        self._writers[stream].append(self._columns.split(step))  # copies into its own tensors
        self._rows[stream] += 1

    def insert(self, stream: int, priority: float) -> None:
        self._check_open()
        check_priority(priority)
        window = self._table.window_steps
        if self._rows[stream] < window:
            raise ReplayError(
                f"an item needs {window} rows, but stream {stream} has {self._rows[stream]} since its "
                "episode began"
            )
        writer = self._writers[stream]
        item = tuple(column[-window:] for column in writer.history)
        try:
            writer.create_item(self._table_name, priority, item)
        except (RuntimeError, ValueError) as error:
            raise self._failed(error) from error
        self._unconfirmed.add(stream)
        self.inserted_items += 1

    def end_episode(self, stream: int) -> None:
        self._rows[stream] = 0

    def ready(self, timeout_s: float) -> bool:
        """Waits until the server has confirmed every item of this writer, which its limiter may hold back."""
        self._check_open()
        clock = time.monotonic  # noqa: TID251, one timeout is shared by many calls
        deadline = clock() + timeout_s
        for stream in sorted(self._unconfirmed):
            left_ms = max(1, round(1000 * (deadline - clock())))
            try:
                self._writers[stream].flush(block_until_num_items=0, timeout_ms=left_ms)
            except DeadlineExceededError:
                self._connection.check()
                return False
            except (RuntimeError, ValueError) as error:
                raise self._failed(error) from error
            self._unconfirmed.discard(stream)
        return True

    def close(self) -> None:
        """Gives what is pending two seconds. It raises nothing, for a dead server is reported elsewhere."""
        if self._closed:
            return
        with contextlib.suppress(ReplayError):
            self.ready(_CLOSE_TIMEOUT_S)
        self._closed = True
        for writer in self._writers:
            writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("this writer has been closed")
        self._connection.check()

    def _failed(self, error: Exception) -> ReplayError:
        self._connection.check()
        return ReplayError(f"the replay server at {self._connection.address} refused items: {error}")
