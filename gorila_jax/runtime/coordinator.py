"""Counts what the run has done and holds the one stop signal."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class Coordinator:
    """Counters and the stop signal of one run. Every method may be called from any thread.

    A signal handler may call `stop`, and it interrupts the main thread anywhere, in the methods below too:
    so the lock is one that its thread can take again.
    """

    def __init__(self, total_steps: int):
        self._changed = threading.Condition(threading.RLock())
        self._stopped = False
        self._total_steps = total_steps
        self._steps = 0
        self.reason = ""  # why the run stopped: "budget", "SIGINT", "SIGTERM" or "failure"
        self.failure: BaseException | None = None

    @property
    def steps(self) -> int:
        """Environment steps of all actors, dummy reset steps not counted."""
        with self._changed:
            return self._steps

    def count_steps(self, steps: int) -> None:
        with self._changed:
            self._steps += steps
            finished = self._steps >= self._total_steps
        if finished:
            self.stop("budget")

    def stop(self, reason: str, failure: BaseException | None = None) -> None:
        """Asks every part to end. The first reason stays; a failure counts even after another reason."""
        with self._changed:
            self.reason = self.reason or reason
            self.failure = self.failure or failure
            self._stopped = True
            self._changed.notify_all()

    def stopped(self) -> bool:
        return self._stopped

    def wait(self, timeout_s: float) -> bool:
        """Waits for the stop signal; whether it came."""
        with self._changed:
            return self._changed.wait_for(self.stopped, timeout_s)

    def restore(self, state: Mapping[str, int]) -> None:
        with self._changed:
            self._steps = int(state["steps"])
