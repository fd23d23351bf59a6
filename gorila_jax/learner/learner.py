"""The learner: one gradient per step, from a batch and a snapshot to the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.jax_utils
import jax
import numpy as np

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.gradients import LearnerMetrics, LossFn, make_gradient_fn
from gorila_jax.learner.prefetch import DeviceBatch
from gorila_jax.rl import guards
from gorila_jax.types import GorilaError, Gradient, Snapshot


class Learner:
    """Pulls parameters, computes the gradient of one batch, pushes it with its flags.

    It always emits gradients: whether one is applied is the parameter server's business. Flags and numbers of
    an update are read while the next one runs, so no update waits for the host. `step` belongs to one thread;
    `metrics` and `state` may be called from others. (Gorila, Nair et al. 2015, section 4.1.)

    Attributes:
      updates: gradients pushed.
      samples: items trained on, `batch_size` per update.
    """

    def __init__(
        self,
        config: LearnerConfig,
        loss_fn: LossFn,
        devices: Sequence[jax.Device],
        next_batch: Callable[[float], DeviceBatch | None],
        pull: Callable[[], Snapshot],
        push: Callable[[Gradient], None],
        send_priorities: Callable[[np.ndarray, jax.Array], None] | None = None,
    ):
        """
        Args:
          next_batch: port to the prefetched batches.
          pull, push: ports to the parameter server.
          send_priorities: takes keys [B] and new priorities [D, B/D] of a batch, and never waits; None where
            replay samples uniformly.

        Raises:
          ConfigError: the devices do not divide the batch size.
        """
        self._config = config
        self._devices = list(devices)
        self._next_batch = next_batch
        self._pull = pull
        self._push = push
        self._send_priorities = send_priorities
        self._gradient_fn = make_gradient_fn(loss_fn, config, devices)
        self._guard = self._replicate(guards.initial_guard_state())
        self._unread: jax.Array | None = None  # metrics of the update dispatched last
        self._sums = np.zeros(len(LearnerMetrics._fields))  # over the finite updates that were read ...
        self._summed_updates = 0  # ... since `metrics` was called last
        self._nonfinite_in_a_row = 0
        self._lock = threading.Lock()  # holds the counters and the guard together for `state` and `metrics`
        self.updates = 0
        self.samples = 0

    def step(self, timeout_s: float) -> bool:
        """Makes one update; False when no batch came in time.

        Raises:
          GorilaError: more than `max_nonfinite_updates` updates in a row were not finite.
        """
        batch = self._next_batch(timeout_s)
        if batch is None:
            return False
        snapshot = self._pull()
        output = self._gradient_fn(
            snapshot.parameters,
            snapshot.target_parameters,
            self._guard,
            batch.steps,
            batch.state,
            batch.weights,
        )
        self._push(Gradient(snapshot.version, output.gradients, output.finite, output.outlier))
        if self._send_priorities is not None:
            self._send_priorities(batch.keys, output.priorities)
        previous, self._unread = self._unread, output.metrics
        with self._lock:
            self._guard = output.guard
            self.updates += 1
            self.samples += self._config.batch_size
        if previous is not None:
            self._read(previous)
        return True

    def finish(self) -> None:
        """Reads what the last update said, waiting for it. Raises as `step` does."""
        unread, self._unread = self._unread, None
        if unread is not None:
            self._read(unread)

    def metrics(self) -> dict[str, float]:
        """Means over the finite updates read since the call before; empty if none were."""
        with self._lock:
            sums, self._sums = self._sums, np.zeros_like(self._sums)
            summed, self._summed_updates = self._summed_updates, 0
        if not summed:
            return {}
        means = LearnerMetrics(*(sums / summed).tolist())
        return {
            "loss": means.loss,
            "mean_abs_td_error": means.mean_abs_td_error,
            "gradient_norm": means.gradient_norm,
        }

    def state(self) -> dict[str, Any]:
        """Counters and guard state, for a checkpoint: numbers that fit any count of devices."""
        with self._lock:
            counters, guard = {"updates": self.updates, "samples": self.samples}, self._guard
        return {**counters, "guard": {name: _first(value) for name, value in guard._asdict().items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave; before the first step."""
        guard = self._replicate(guards.GuardState(**state["guard"]))
        with self._lock:
            self._guard = guard
            self.updates = int(state["updates"])
            self.samples = int(state["samples"])

    def _replicate(self, guard: guards.GuardState) -> guards.GuardState:
        return flax.jax_utils.replicate(guard, self._devices)

    def _read(self, metrics: jax.Array) -> None:
        last = LearnerMetrics(*_first(metrics).tolist())
        with self._lock:
            if last.finite:
                self._sums += last
                self._summed_updates += 1
                self._nonfinite_in_a_row = 0
            else:
                self._nonfinite_in_a_row += 1
        if self._nonfinite_in_a_row > self._config.max_nonfinite_updates:
            raise GorilaError(
                f"the loss or the gradient was not finite in {self._nonfinite_in_a_row} updates in a row, "
                f"more than learner.max_nonfinite_updates={self._config.max_nonfinite_updates} (last loss "
                f"{last.loss}, gradient norm {last.gradient_norm}): look for NaN or huge numbers in rewards "
                "and observations, or lower parameter_server.learning_rate"
            )


def _first(value: jax.Array) -> np.ndarray:
    """The first device's share of an array that is equal on all; without the device axis. Waits for it."""
    share = np.asarray(value.addressable_data(0))
    return share.reshape(value.shape[1:])
