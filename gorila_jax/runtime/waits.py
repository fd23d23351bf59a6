"""How long the parts wait for each other: the ports are timed here, so that no worker needs a clock."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gorila_jax.types import Environment, EnvironmentStep

Port = TypeVar("Port", bound=Callable[..., Any])


class Waits:
    """Seconds spent inside timed ports, by name, since the last `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.monotonic()

    def timed(self, name: str, port: Port) -> Port:
        """`port`, with the time of its calls added up under `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.monotonic()
            try:
                return port(*args, **kwargs)
            finally:
                with self._lock:
                    self._seconds[name] += time.monotonic() - start

        return call  # type: ignore[return-value]

    def take(self, callers: dict[str, int]) -> dict[str, float]:
        """The share of the time since the last call that each name's callers (their number) waited."""
        with self._lock:
            now = time.monotonic()
            elapsed, self._since = max(now - self._since, 1e-9), now
            seconds, self._seconds = self._seconds, defaultdict(float)
        return {name: min(1.0, seconds[name] / elapsed / max(1, number)) for name, number in callers.items()}


class TimedEnvironment(Environment):
    """An environment whose steps are timed under `name`, both halves together."""

    def __init__(self, environment: Environment, waits: Waits, name: str):
        self.spec = environment.spec
        self.num_environments = environment.num_environments
        self._environment = environment
        self._send = waits.timed(name, environment.send)
        self._recv = waits.timed(name, environment.recv)

    def reset(self) -> EnvironmentStep:
        return self._environment.reset()

    def send(self, actions: np.ndarray) -> None:
        self._send(actions)

    def recv(self) -> EnvironmentStep:
        return self._recv()

    def close(self) -> None:
        self._environment.close()
