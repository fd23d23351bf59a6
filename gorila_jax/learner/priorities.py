"""Sends the priorities that learning found back to replay, beside the learner's updates."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

BATCHES_PER_WRITE = 4  # a write to Reverb takes as long for four small batches as for one
WAITING_BATCHES = 64  # before the oldest is dropped: far more than a healthy replay leaves waiting


class PriorityCounts(NamedTuple):
    """What became of the priorities that the learner sent, in items."""

    written: int
    evicted: int  # the item had left replay meanwhile
    nonfinite: int  # kept back: they would poison the table
    dropped: int  # the queue was full


class PriorityWriter:
    """A worker with a queue of its own. The learner's thread calls `send`, another one `step`.

    The learner never waits: what it sends are arrays still to be computed, which `step` waits for.
    """

    def __init__(self, update: Callable[[np.ndarray, np.ndarray], int]):
        """`update`: port to replay, takes keys [N] and priorities [N] and says how many keys are gone."""
        self._update = update
        self._waiting: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()
        self._changed = threading.Condition()
        self._counts = PriorityCounts(0, 0, 0, 0)

    def send(self, keys: np.ndarray, priorities: jax.Array) -> None:
        """Queues the priorities [D, B/D] of the items with these keys [B]. Returns at once."""
        with self._changed:
            if len(self._waiting) == WAITING_BATCHES:
                gone, _ = self._waiting.popleft()
                self._count(dropped=len(gone))
            self._waiting.append((keys, priorities))
            if self._has_enough():
                self._changed.notify()

    def step(self, timeout_s: float) -> bool:
        """Writes the priorities of `BATCHES_PER_WRITE` batches together, or of the fewer that came in time.

        Of an item in several of them the last priority holds. False when no batch came.
        """
        with self._changed:
            self._changed.wait_for(self._has_enough, timeout_s)
            taken = [self._waiting.popleft() for _ in range(min(BATCHES_PER_WRITE, len(self._waiting)))]
        if not taken:
            return False
        keys = np.concatenate([keys for keys, _ in taken])
        priorities = np.concatenate([np.asarray(sent).ravel() for _, sent in taken])
        finite = np.isfinite(priorities)
        evicted = self._update(keys[finite], priorities[finite]) if finite.any() else 0
        usable = int(np.count_nonzero(finite))
        with self._changed:
            self._count(written=usable - evicted, evicted=evicted, nonfinite=len(finite) - usable)
        return True

    def counts(self) -> PriorityCounts:
        """Since this run's last start."""
        with self._changed:
            return self._counts

    def _has_enough(self) -> bool:
        return len(self._waiting) >= BATCHES_PER_WRITE

    def _count(self, written: int = 0, evicted: int = 0, nonfinite: int = 0, dropped: int = 0) -> None:
        old = self._counts
        self._counts = PriorityCounts(
            old.written + written, old.evicted + evicted, old.nonfinite + nonfinite, old.dropped + dropped
        )
