"""When batches were drawn, to tell which of their items have left the table: Reverb does not say."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

import numpy as np

_REMEMBERED_BATCHES = 256
BATCHES_PER_COUNT = 16
"""To ask the server for its count of inserts costs a millisecond: it is done once for so many batches."""


class Draws:
    """The last 256 batches of one sampler. One thread remembers, and others may ask."""

    def __init__(self, capacity_items: int, count_inserts: Callable[[], int]):
        """Args:
        capacity_items: of the table.
        count_inserts: asks how many items the table has ever taken.
        """
        self.number = 0  # of all batches, those that are forgotten too
        self._capacity_items = capacity_items
        self._count_inserts = count_inserts
        # Keys [B] and the table's count of inserts when or after they were drawn, if known.
        self._batches: collections.deque[tuple[np.ndarray, int | None]] = collections.deque(
            maxlen=_REMEMBERED_BATCHES
        )

    def remember(self, keys: np.ndarray, table_size: int) -> None:
        """A batch that was just drawn, when the table held so many items."""
        self.number += 1
        inserted: int | None = None
        if table_size < self._capacity_items:
            inserted = table_size  # nothing was ever evicted
        elif self.number % BATCHES_PER_COUNT == 1:
            inserted = self._count_inserts()
        self._batches.append((keys, inserted))

    def gone(self, inserted: int) -> Iterator[np.ndarray]:
        """Keys [B] of batches all of whose items have certainly left the table, which has now taken
        `inserted` items: a whole capacity of them since."""
        inserted_then = inserted
        for keys, known in reversed(tuple(self._batches)):
            inserted_then = inserted_then if known is None else known  # a later count is a safe one
            if inserted_then <= inserted - self._capacity_items:
                yield keys
