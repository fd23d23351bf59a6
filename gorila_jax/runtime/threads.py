"""One thread per worker in this process: the embedded default."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from gorila_jax.runtime.coordinator import Coordinator

STEP_TIMEOUT_S = 0.2  # the longest a worker waits before it looks at the stop signal
JOIN_TIMEOUT_S = 60.0  # for all workers together to come to their end: a first compilation takes long

IDLE = 20
"""A niceness beyond the nicest of 19: such a thread runs where a core has nothing else to do."""

_Result = TypeVar("_Result")


class Worker(Protocol):
    def step(self, timeout_s: float) -> bool: ...


def run_threads(
    workers: Mapping[str, Worker],
    coordinator: Coordinator,
    tick: Callable[[], None],
    tick_period_s: float,
    niceness: Mapping[str, int] | None = None,
) -> list[str]:
    """Steps every worker in its own thread until the stop signal, and calls `tick` meanwhile.

    The first exception of a worker stops all of them and ends up in `coordinator.failure`.

    Args:
      niceness: by name, of workers that give way to the others (`yield_to_others`).

    Returns:
      The names of workers that did not come to their end in time: their threads still hold what they use.
    """

    def loop(name: str, worker: Worker) -> None:
        try:
            yield_to_others((niceness or {}).get(name, 0))
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


def yield_to_others(niceness: int) -> None:
    """Lowers the priority of this thread, and of those that it starts from now on, by so many nice values, or
    for `IDLE` of them below that of any other thread.

    An update on several threads is as late as the last of them: one that shares its core, even for a moment,
    holds up all the others. What makes batches may be late without anybody noticing, since there are some in
    store. What XLA computes in threads of its own, a policy among it, does not yield. Without effect but on
    Linux, where threads have priorities of their own. It cannot be taken back.
    """
    if sys.platform != "linux":
        return
    if niceness == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
    else:
        os.nice(niceness)


def call_yielding(niceness: int, call: Callable[[], _Result]) -> _Result:
    """Makes one call in a thread that yields to others, for the sake of the threads that the call starts.

    A KeyboardInterrupt comes out when the call has ended: what it was building is not pulled from under it.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            yield_to_others(niceness)
            results.append(call())
        except BaseException as error:  # handed to the thread that waits for us, with its traceback
            errors.append(error)
        finally:
            ended.set()

    try:
        threading.Thread(target=run, name="build", daemon=True).start()
        _wait(ended)
    except KeyboardInterrupt:
        _wait(ended)
        raise
    if errors:
        raise errors.pop()
    return results.pop()


def _wait(event: threading.Event) -> None:
    """With pauses, because a signal that comes just before a wait does not end it."""
    while not event.wait(STEP_TIMEOUT_S):
        pass
