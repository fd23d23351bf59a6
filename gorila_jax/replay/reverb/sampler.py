"""A learner's end of one Reverb table."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.reverb.daemon import CancelledError, DaemonCaller, Future
from gorila_jax.replay.reverb.draws import BATCHES_PER_COUNT, Draws
from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.reverb.tables import item_signature
from gorila_jax.replay.table import TableSpec, check_priorities
from gorila_jax.types import STORED_STATE, Batch, ReplayError, SampleInfo

_ANSWER_TIMEOUT_S = 10.0  # for calls that a healthy server answers in milliseconds
_UPDATE_TIMEOUT_S = 60  # a server that writes a checkpoint may take priorities late
_LIMITER_TIMEOUT_MS = 1000  # then the read ends and begins anew, so that a closed sampler's thread ends


class ReverbSampler:
    """Implements `types.Sampler`. `sample` and `update_priorities` may be called from two threads.

    Reverb fetches ahead: besides the batch that was asked for, at most about two batches have been drawn
    that nobody has seen yet. Their priorities are as old as that, and the limiter counts them as sampled.
    """

    def __init__(
        self,
        connection: Connection,
        table: TableSpec,
        number: int,
        batch_size: int,
        draws_of_table: list[Draws],
    ):
        """`draws_of_table`: of all samplers of this table in this process, for each may be sent priorities of
        what another one has drawn. This one's are added."""
        self._connection = connection
        self._table = table
        self._packing = Packing(table.signature)
        self._number = number
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._closed = False
        self._pending: Future[Batch | None] | None = None
        self._reader = DaemonCaller("reverb-read")
        self._updater = DaemonCaller("reverb-update")
        self._draws_of_table = draws_of_table
        # Only the updater's thread uses these:
        # Batches drawn, when the table was last asked for the count of its inserts: long ago.
        self._counted_at = -BATCHES_PER_COUNT
        self._known_inserts = 0
        # Only the reader's thread writes these:
        self._iterator: Any = None
        self._parts: list[Any] = []
        self._draws = Draws(table.capacity_items, self._inserted)
        draws_of_table.append(self._draws)

    def sample(self, timeout_s: float) -> Batch | None:
        self._check_open()
        with self._lock:
            if self._pending is None:
                self._pending = self._reader.submit(self._read)
            pending = self._pending
        try:
            batch = pending.result(timeout_s)
        except TimeoutError:
            self._connection.check()
            return None
        except CancelledError:  # closed meanwhile
            return None
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            self._connection.check()
            raise ReplayError(f"the replay server at {self._connection.address} failed: {error}") from error
        self._connection.check()  # nothing that came after the server was exchanged may be trained on
        with self._lock:
            # Of several threads that waited for the same batch one gets it.
            if self._pending is not pending:
                return None
            self._pending = None
        return batch

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Reverb ignores keys that are gone without a word, so this returns a count that may be too low.

        Counted are keys of the last 256 batches of each sampler of this table that are gone for certain,
        because the table had taken a whole capacity of items since they were drawn when it was last asked.
        Other keys may be gone too.
        """
        keys, priorities = check_priorities(keys, priorities)
        self._check_open()
        updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
        future = self._updater.submit(lambda: self._update(keys, updates))
        try:
            for _ in range(_UPDATE_TIMEOUT_S):
                with contextlib.suppress(TimeoutError):
                    return int(future.result(1.0))
                self._connection.check()
            raise ReplayError(
                f"the replay server at {self._connection.address} did not take new priorities within "
                f"{_UPDATE_TIMEOUT_S} s"
            )
        except CancelledError as error:
            raise ReplayError("this sampler has been closed") from error
        except (RuntimeError, ValueError) as error:
            self._connection.check()
            raise ReplayError(f"the replay server at {self._connection.address} failed: {error}") from error

    def stop(self) -> None:
        """Begins to close, without waiting: whoever waits in `sample` gets None at once."""
        self._closed = True
        self._updater.stop()
        self._reader.stop()

    def close(self) -> None:
        """Ends both threads, or leaves them waiting for a server that will never answer."""
        self.stop()
        self._updater.close(1.0)
        self._reader.close(_LIMITER_TIMEOUT_MS / 1000 + 2.0)

    def _update(self, keys: np.ndarray, updates: dict[int, float]) -> int:
        self._connection.client.mutate_priorities(self._connection.table_name(self._number), updates)
        # A learner draws a batch between two updates, and then old news will do.
        drawn = sum(draws.drawn_batches for draws in self._draws_of_table)
        if not self._counted_at < drawn < self._counted_at + BATCHES_PER_COUNT:
            self._counted_at, self._known_inserts = drawn, self._inserted()
        gone = [batch for draws in self._draws_of_table for batch in draws.gone(self._known_inserts)]
        return int(np.isin(keys, np.concatenate(gone)).sum()) if gone else 0

    def _read(self) -> Batch | None:
        """The next batch, however long it takes; None when the sampler was closed meanwhile."""
        while sum(len(part.info.key) for part in self._parts) < self._batch_size:
            if self._closed:
                return None
            if self._iterator is None:
                self._iterator = self._open()
            try:
                self._parts.append(next(self._iterator))
            except StopIteration:
                # The limiter's timeout ends a data set as the end of the data would. It begins anew, and
                # items that came before (the last part may be short) are kept: the limiter has counted them.
                self._iterator = None
        batch, *others = self._parts
        self._parts = []
        if others:
            whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), batch, *others)
            batch = tf.nest.map_structure(lambda column: column[: self._batch_size], whole)
            # Copied, or else the few that are left would keep a whole batch in memory.
            rest = tf.nest.map_structure(lambda column: column[self._batch_size :].copy(), whole)
            self._parts = [rest] if len(rest.info.key) else []
        info = SampleInfo(
            batch.info.key.astype(np.uint64, copy=False),
            batch.info.probability.astype(np.float64, copy=False),
            batch.info.table_size.astype(np.int64, copy=False),
        )
        self._draws.remember(info.keys, int(info.table_sizes.max()))
        rows, *states = batch.data
        state = states[0][:, 0] if states else np.zeros((self._batch_size, 0), STORED_STATE)
        return Batch(self._packing.unpack(rows), state, info)

    def _open(self) -> Any:
        signature = item_signature(self._table)
        dataset = reverb.TrajectoryDataset(
            self._connection.address,
            self._connection.table_name(self._number),
            dtypes=tuple(spec.dtype for spec in signature),
            shapes=tuple(spec.shape for spec in signature),
            max_in_flight_samples_per_worker=self._batch_size,
            num_workers_per_iterator=1,
            rate_limiter_timeout_ms=_LIMITER_TIMEOUT_MS,
        )
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False  # it would fetch many batches ahead
        return dataset.batch(self._batch_size).with_options(options).as_numpy_iterator()

    def _inserted(self) -> int:
        info = self._connection.info(self._number, _ANSWER_TIMEOUT_S)
        return info.rate_limiter_info.insert_stats.completed

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("this sampler has been closed")
        self._connection.check()
