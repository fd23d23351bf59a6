"""A thread per worker: they all end, and none dies in silence."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from gorila_jax.runtime import threads
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.threads import IDLE, call_yielding, run_threads


class Counting:
    """Counts up to its share of the budget, then waits as a worker that nobody gives anything."""

    def __init__(self, coordinator: Coordinator, steps: int):
        self.coordinator, self.left = coordinator, steps
        self.timeouts: list[float] = []
        self.thread = ""

    def step(self, timeout_s: float) -> bool:
        self.thread = threading.current_thread().name
        self.timeouts.append(timeout_s)
        if not self.left:
            self.coordinator.wait(timeout_s)
            return False
        self.left -= 1
        self.coordinator.count_steps(1)
        return True


def nothing() -> None: ...


def alive(*names: str) -> set[str]:
    return {thread.name for thread in threading.enumerate()} & set(names)


def test_every_worker_has_a_thread_of_its_name_until_the_budget_is_used_up():
    coordinator = Coordinator(30)
    workers = {f"worker_{i}": Counting(coordinator, 10) for i in range(3)}
    run_threads(workers, coordinator, nothing, 0.01)
    assert coordinator.steps == 30
    assert (coordinator.reason, coordinator.failure) == ("budget", None)
    assert [worker.thread for worker in workers.values()] == list(workers)
    assert not alive(*workers)
    # None may wait for longer before it looks at the stop signal.
    assert {t for worker in workers.values() for t in worker.timeouts} == {threads.STEP_TIMEOUT_S}


def test_a_failure_stops_all_workers_and_is_handed_on_with_its_traceback():
    coordinator = Coordinator(10**9)

    class Broken:
        def step(self, timeout_s: float) -> bool:
            raise ValueError("the robot fell over")

    workers = {"good": Counting(coordinator, 0), "bad": Broken()}
    assert run_threads(workers, coordinator, nothing, 0.01) == []
    assert coordinator.reason == "failure"
    assert str(coordinator.failure) == "the robot fell over"
    assert coordinator.failure.__notes__ == ["in bad"]
    assert coordinator.failure.__traceback__.tb_next.tb_frame.f_code.co_name == "step"
    assert not alive("good", "bad")


def test_a_failure_after_the_budget_still_counts():
    coordinator = Coordinator(1)

    class Late:
        def step(self, timeout_s: float) -> bool:
            coordinator.count_steps(1)
            raise ValueError("at the very end")

    run_threads({"late": Late()}, coordinator, nothing, 0.01)
    assert coordinator.reason == "budget"
    assert str(coordinator.failure) == "at the very end"


def test_ticks_go_on_meanwhile_and_one_that_fails_ends_the_workers():
    coordinator = Coordinator(10**9)
    ticks = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        run_threads({"worker": Counting(coordinator, 0)}, coordinator, tick, 0.001)
    assert coordinator.stopped()
    assert not alive("worker")


def test_workers_that_do_not_stop_are_named_and_share_one_patience(monkeypatch):
    monkeypatch.setattr(threads, "JOIN_TIMEOUT_S", 0.2)
    coordinator, released, both = Coordinator(10**9), threading.Event(), threading.Barrier(2)
    waited: list[float] = []
    join = threading.Thread.join
    monkeypatch.setattr(
        threading.Thread, "join", lambda self, timeout=None: waited.append(timeout) or join(self, timeout)
    )

    class Stuck:
        def step(self, timeout_s: float) -> bool:
            both.wait()
            coordinator.stop("SIGINT")
            released.wait()
            return False

    try:
        stuck = run_threads({"stuck_0": Stuck(), "stuck_1": Stuck()}, coordinator, nothing, 0.01)
    finally:
        released.set()
    assert stuck == ["stuck_0", "stuck_1"]
    assert (coordinator.reason, coordinator.failure) == ("SIGINT", None)
    assert waited[-1] == 0.0  # the first one has used it up


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_workers_yield_as_far_as_they_are_told_and_nobody_else_does():
    coordinator = Coordinator(10**9)
    before, seen = niceness(), {}

    class Curious:
        def step(self, timeout_s: float) -> bool:
            seen[threading.current_thread().name] = niceness()
            if len(seen) == 3:
                coordinator.stop("budget")
            return bool(coordinator.wait(timeout_s))

    workers = {name: Curious() for name in ("actor", "prefetcher", "learner")}
    run_threads(workers, coordinator, nothing, 0.01, {"actor": 1, "prefetcher": 3})
    assert seen == {"actor": min(19, before + 1), "prefetcher": min(19, before + 3), "learner": before}
    assert niceness() == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_threads_that_a_yielding_call_starts_yield_too():
    before, seen = niceness(), []

    def call() -> str:
        thread = threading.Thread(target=lambda: seen.append(niceness()))
        thread.start()
        thread.join()
        return "done"

    assert call_yielding(2, call) == "done"
    assert seen == [min(19, before + 2)]
    assert niceness() == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_the_last_level_runs_where_a_core_is_idle_and_so_do_the_threads_it_starts():
    before, seen = os.sched_getscheduler(0), []

    def call() -> int:
        thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
        return os.sched_getscheduler(0)

    assert call_yielding(IDLE, call) == os.SCHED_IDLE
    assert seen == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) == before


def test_what_a_yielding_call_raises_comes_out_with_its_traceback():
    def fail() -> None:
        raise ValueError("no such robot")

    with pytest.raises(ValueError, match="no such robot") as caught:
        call_yielding(1, fail)
    assert any(entry.name == "fail" for entry in caught.traceback)


def test_an_interrupted_call_comes_to_its_end_first():
    """What is being built is not closed meanwhile."""
    begun, interrupted = threading.Event(), threading.Event()
    ended = []

    def call() -> None:
        begun.set()
        assert interrupted.wait(60)
        ended.append(True)

    def interrupt(signum: int, frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        waker = threading.Thread(target=lambda: begun.wait(60) and os.kill(os.getpid(), signal.SIGUSR1))
        waker.start()
        with pytest.raises(KeyboardInterrupt):
            call_yielding(1, call)
        assert ended == [True]
        waker.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
