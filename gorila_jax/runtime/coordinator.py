"""Counts what the run has done and holds the one stop signal."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class Coordinator:
    """Counters and the stop signal of one run. Every method may be called from any thread."""

    def __init__(self, total_steps: int):
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._total_steps = total_steps
        self._steps = 0
        self.reason = ""  # why the run stopped: "budget", "SIGINT", "SIGTERM" or "failure"
        self.failure: BaseException | None = None

    @property
    def steps(self) -> int:
        """Environment steps of all actors, dummy reset steps not counted."""
        with self._lock:
            return self._steps

    def count_steps(self, steps: int) -> None:
        with self._lock:
            self._steps += steps
            finished = self._steps >= self._total_steps
        if finished:
            self.stop("budget")

    def stop(self, reason: str, failure: BaseException | None = None) -> None:
        """Asks every part to end. The first reason stays; a failure counts even after another reason."""
        with self._lock:
            self.reason = self.reason or reason
            self.failure = self.failure or failure
        self._stop.set()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the stop signal; whether it came."""
        return self._stop.wait(timeout_s)

    def state(self) -> dict[str, int]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, int]) -> None:
        with self._lock:
            self._steps = int(state["steps"])
