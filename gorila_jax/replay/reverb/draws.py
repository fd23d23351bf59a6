"""When batches were drawn, to tell which of their items have left the table: Reverb does not say."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator

import numpy as np

_REMEMBERED_BATCHES = 256
BATCHES_PER_COUNT = 16
"""To ask the server for its count of inserts costs a millisecond: a sampler does it once in 16 batches."""


class Draws:
    """The last 256 batches of one sampler. One thread remembers, and others may ask."""

    def __init__(self, capacity_items: int, count_inserts: Callable[[], int]):
        """Args:
        capacity_items: of the table.
        count_inserts: asks how many items the table has ever taken.
        """
        self.drawn_batches = 0  # those that are forgotten too
        self._capacity_items = capacity_items
        self._count_inserts = count_inserts
        self._lock = threading.Lock()  # never held while the server is asked
        # Keys [B] and the table's count of inserts when or after they were drawn, if known.
        self._batches: collections.deque[tuple[np.ndarray, int | None]] = collections.deque(
            maxlen=_REMEMBERED_BATCHES
        )

    def remember(self, keys: np.ndarray, table_size_items: int) -> None:
        """A batch that was just drawn, and how many items the table held then."""
        self.drawn_batches += 1
        inserted_items: int | None = None
        if table_size_items < self._capacity_items:
            inserted_items = table_size_items  # nothing was ever evicted
        elif self.drawn_batches % BATCHES_PER_COUNT == 1:
            inserted_items = self._count_inserts()
        with self._lock:
            self._batches.append((keys, inserted_items))

    def gone(self, inserted_items: int) -> Iterator[np.ndarray]:
        """Keys [B] of batches all of whose items have certainly left the table: it has taken a whole capacity
        of items since, now that there were `inserted_items` in all."""
        with self._lock:
            batches = tuple(self._batches)
        then = inserted_items
        for keys, known in reversed(batches):
            then = then if known is None else known  # a later count is a safe one
            if then <= inserted_items - self._capacity_items:
                yield keys
