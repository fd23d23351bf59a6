"""Counters and the stop signal, also where a signal handler interrupts them."""

from __future__ import annotations

import signal
import threading

import pytest

from gorila_jax.runtime.coordinator import Coordinator

PATIENCE_S = 30
FOR_EVER_S = 1e6


def test_the_budget_ends_the_run_when_it_is_reached_and_not_before():
    coordinator = Coordinator(10)
    coordinator.count_steps(9)
    assert not coordinator.stopped()
    assert not coordinator.wait(0.0)
    coordinator.count_steps(4)
    assert coordinator.stopped()
    assert coordinator.wait(0.0)
    assert (coordinator.steps, coordinator.reason, coordinator.failure) == (13, "budget", None)


def test_no_step_is_lost_between_threads():
    coordinator = Coordinator(10**9)
    threads = [
        threading.Thread(target=lambda: [coordinator.count_steps(3) for _ in range(2000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert coordinator.steps == 8 * 2000 * 3


def test_the_first_reason_stays_and_a_failure_counts_even_after_it():
    coordinator = Coordinator(10)
    failure = RuntimeError("broken")
    coordinator.stop("SIGINT")
    coordinator.stop("failure", failure)
    coordinator.stop("failure", RuntimeError("a consequence"))
    assert coordinator.reason == "SIGINT"
    assert coordinator.failure is failure


def test_a_resumed_run_counts_on_and_may_have_no_budget_left():
    first = Coordinator(100)
    first.count_steps(60)
    second = Coordinator(60)
    second.restore({"steps": first.steps})
    assert second.steps == 60
    assert not second.stopped()
    second.count_steps(0)
    assert second.reason == "budget"


class InterruptedCount(int):
    """A number of steps during whose counting a signal arrives: its handler runs in the same thread."""

    def __new__(cls, handler):
        number = super().__new__(cls, 1)
        number.handler = handler
        return number

    def __radd__(self, steps):
        self.handler()
        return steps + 1


def test_a_signal_that_interrupts_counting_stops_the_run_and_does_not_block_it():
    coordinator = Coordinator(10)
    count = InterruptedCount(lambda: coordinator.stop("SIGINT"))
    thread = threading.Thread(target=coordinator.count_steps, args=(count,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the handler waits for the lock that the code it interrupted holds"
    assert (coordinator.steps, coordinator.reason) == (1, "SIGINT")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads on this platform")
def test_a_signal_wakes_the_thread_that_waits():
    coordinator = Coordinator(10)
    before = signal.signal(signal.SIGUSR1, lambda *_: coordinator.stop("SIGTERM"))
    main_thread = threading.main_thread().ident
    sender = threading.Thread(target=signal.pthread_kill, args=(main_thread, signal.SIGUSR1))
    try:
        sender.start()
        assert coordinator.wait(FOR_EVER_S)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert coordinator.reason == "SIGTERM"


def test_stopping_wakes_every_waiting_thread():
    coordinator = Coordinator(10)
    woken: list[bool] = []
    waiting = threading.Semaphore(0)

    def wait() -> None:
        waiting.release()
        woken.append(coordinator.wait(FOR_EVER_S))

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
        assert waiting.acquire(timeout=PATIENCE_S)
    coordinator.stop("SIGINT")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 4
