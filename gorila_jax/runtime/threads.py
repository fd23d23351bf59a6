"""One thread per worker in this process: the embedded default."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gorila_jax.runtime.coordinator import Coordinator

STEP_TIMEOUT_S = 0.2  # the longest a worker waits before it looks at the stop signal
JOIN_TIMEOUT_S = 60.0  # for all workers together to come to their end: a first compilation takes long


class Worker(Protocol):
    def step(self, timeout_s: float) -> bool: ...


def run_threads(
    workers: Mapping[str, Worker], coordinator: Coordinator, tick: Callable[[], None], tick_period_s: float
) -> list[str]:
    """Steps every worker in its own thread until the stop signal, and calls `tick` meanwhile.

    The first exception of a worker stops all of them and ends up in `coordinator.failure`.

    Returns:
      The names of workers that did not come to their end in time: their threads still hold what they use.
    """

    def loop(name: str, worker: Worker) -> None:
        try:
            while not coordinator.stopped():
                worker.step(STEP_TIMEOUT_S)
        except BaseException as failure:  # handed to the thread that waits for us, with its traceback
            failure.add_note(f"in {name}")
            coordinator.stop("failure", failure)

    threads = [
        threading.Thread(target=loop, args=(name, worker), name=name, daemon=True)
        for name, worker in workers.items()
    ]
    for thread in threads:
        thread.start()
    try:
        while not coordinator.wait(tick_period_s):
            tick()
    finally:
        coordinator.stop("failure")
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
