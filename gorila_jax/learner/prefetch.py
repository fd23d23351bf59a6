"""Moves batches from replay to the learner's devices, ahead of their updates."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.gradients import check_batch_size
from gorila_jax.rl.priorities import importance_weights
from gorila_jax.types import Batch, Step

PATIENCE_S = 0.5  # that a learner waits for a batch before a stand-in tries to get one
LATE_BATCHES = 3  # that a stand-in brings before it is clear that the prefetcher is starved


class DeviceBatch(NamedTuple):
    """A batch in equal shares for D devices: in their memory, which on the CPU is the host's."""

    steps: Step  # [D, B/D, W, ...]
    state: Any  # [D, B/D, K] float16, stored with the items
    weights: Any  # [D, B/D] float32: of the items' losses
    keys: np.ndarray  # [B], on the host: of the items, in the same order


def to_devices(devices: Sequence[jax.Device]) -> Callable[[Any], Any]:
    """Moves trees of arrays [D, ...] to D devices, each its share.

    A pmap-ed identity is the one way onto several devices that every release of jax keeps.
    """
    return jax.pmap(lambda tree: tree, devices=devices)


class Prefetcher:
    """A worker that keeps up to `config.prefetch_batches` batches ready for the devices, with the importance
    weights of their items.

    On the CPU they wait as they came from replay: a copy for a device that reads the host's memory would be
    work on the learner's own cores for nothing.

    One thread calls `step`, another `next_batch`. With `prefetch_batches` 0 nobody needs to call `step`:
    `next_batch` samples by itself. The thread that calls `step` may be of a priority so low that it is
    starved: see `StandIn`.
    """

    def __init__(
        self,
        config: LearnerConfig,
        devices: Sequence[jax.Device],
        sample: Callable[[float], Batch | None],
    ):
        """Args:
          config: `batch_size`, `prefetch_batches` and `importance_exponent` count here.
          devices: of this learner.
          sample: port to replay; it never writes to the arrays of a batch that it has handed out.

        Raises:
          ConfigError: the devices do not divide the batch size.
        """
        check_batch_size(config.batch_size, len(devices))
        self._sample = sample
        self._share = (len(devices), config.batch_size // len(devices))
        self._capacity_batches = config.prefetch_batches
        self._move = to_devices(devices) if devices[0].platform != "cpu" else lambda tree: tree
        self._importance_exponent = config.importance_exponent
        self._even_weights = np.ones(config.batch_size, np.float32)
        self._ready: collections.deque[DeviceBatch] = collections.deque()
        self._changed = threading.Condition()
        self._hungry = False  # the queue was found empty, and nothing has come since
        self._stood_in = 0  # batches that a stand-in has brought since one of our own came in time
        self._replaced = False  # by a stand-in, for good

    def step(self, timeout_s: float) -> bool:
        """Samples one batch and makes it ready; False when replay gave none in time, or the queue was full.

        A call waits for replay or for room in the queue, never for both.
        """
        with self._changed:
            if self._replaced or not self._has_room():
                self._changed.wait_for(lambda: self._has_room() and not self._replaced, timeout_s)
                return False
        batch = self._take_sample(self._sample, timeout_s)
        if batch is None:
            return False
        with self._changed:
            if not self._hungry:  # it has come before it was needed
                self._stood_in = 0
            self._put(batch)
        return True

    def stand_in(self, sample: Callable[[float], Batch | None], timeout_s: float) -> bool:
        """What `StandIn.step` does, with its `sample`; for one other thread."""
        with self._changed:
            if self._replaced:
                if not self._has_room():
                    self._changed.wait_for(self._has_room, timeout_s)
                    return False
            else:
                if not self._changed.wait_for(lambda: self._hungry, timeout_s):
                    return False
                if self._changed.wait_for(lambda: not self._hungry, PATIENCE_S):
                    return False
        batch = self._take_sample(sample, timeout_s)
        if batch is None:
            return False
        with self._changed:
            self._stood_in += 1
            self._replaced |= self._stood_in >= LATE_BATCHES
            self._put(batch)
        return True

    def next_batch(self, timeout_s: float) -> DeviceBatch | None:
        """The oldest batch waiting, or None when there was none in time."""
        if not self._capacity_batches:
            return self._take_sample(self._sample, timeout_s)
        with self._changed:
            if not self._ready and not self._hungry:
                self._hungry = True
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._ready, timeout_s):
                return None
            batch = self._ready.popleft()
            self._changed.notify_all()
            return batch

    def _has_room(self) -> bool:
        return len(self._ready) < self._capacity_batches

    def _put(self, batch: DeviceBatch) -> None:
        self._ready.append(batch)
        self._hungry = False
        self._changed.notify_all()

    def _take_sample(self, sample: Callable[[float], Batch | None], timeout_s: float) -> DeviceBatch | None:
        batch = sample(timeout_s)
        if batch is None:
            return None
        weights, info = self._even_weights, batch.info
        if self._importance_exponent:
            weights = importance_weights(info.probabilities, info.table_sizes, self._importance_exponent)
        shared: Any = jax.tree_util.tree_map(
            lambda rows: np.reshape(rows, self._share + np.shape(rows)[1:]),
            (batch.steps, batch.state, weights),
        )
        steps, state, weights = self._move(shared)
        return DeviceBatch(steps, state, weights, info.keys)


class StandIn:
    """A worker that takes a prefetcher's place when that is starved of processor time.

    For a prefetcher whose thread runs only where a core has nothing else to do. Where something else keeps
    all cores busy, it may not come to run at all, and a thread's priority cannot be raised. So another
    thread, of an ordinary one, looks on, and brings a batch itself when the learner has waited for long. When
    it has brought several and the prefetcher none in time, it goes on alone.
    """

    def __init__(self, prefetcher: Prefetcher, sample: Callable[[float], Batch | None]):
        """`sample`: port to replay, another one than the prefetcher's."""
        self._prefetcher = prefetcher
        self._sample = sample

    def step(self, timeout_s: float) -> bool:
        """Makes one batch ready, if it is needed; False when it was not, or replay gave none in time."""
        return self._prefetcher.stand_in(self._sample, timeout_s)
