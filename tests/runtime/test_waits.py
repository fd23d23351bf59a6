"""Times spent in ports, on a clock that the test moves."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.runtime import waits
from gorila_jax.runtime.waits import TimedEnvironment, Waits
from tests.doubles import CounterEnv, episode


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_the_share_is_of_the_time_since_the_last_call_and_per_caller(clock):
    counted = Waits()
    wait = counted.timed("learner", lambda seconds: clock(seconds) or "a batch")
    assert wait(2.0) == "a batch"
    assert wait(1.0) == "a batch"
    clock(7.0)
    assert counted.take({"learner": 1, "actor": 4}) == {"learner": pytest.approx(0.3), "actor": 0.0}
    wait(1.0)
    clock(1.0)
    assert counted.take({"learner": 2}) == {"learner": pytest.approx(0.25)}


def test_several_callers_at_once_never_make_more_than_all_of_the_time(clock):
    counted = Waits()
    wait = counted.timed("actor", clock)
    wait(4.0)
    counted._seconds["actor"] += 4.0  # another thread waited through the same time
    assert counted.take({"actor": 1}) == {"actor": 1.0}


def test_a_port_that_fails_is_timed_and_fails(clock):
    counted = Waits()

    def port() -> None:
        clock(5.0)
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        counted.timed("pull", port)()
    assert counted.take({"pull": 1}) == {"pull": 1.0}


def test_a_timed_environment_is_the_environment_itself(clock):
    counted = Waits()
    environment = CounterEnv([[episode(3)]])
    environment.send = lambda actions, send=environment.send: clock(1.0) or send(actions)
    environment.recv = lambda recv=environment.recv: clock(2.0) or recv()
    timed = TimedEnvironment(environment, counted, "environment")
    assert timed.spec == environment.spec
    assert timed.num_environments == 1
    assert timed.reset().first.all()
    assert timed.step(np.zeros(1, np.int32)).observation == [1]
    clock(1.0)
    assert counted.take({"environment": 1}) == {"environment": pytest.approx(0.75)}
    timed.send(np.zeros(1, np.int32))
    clock(1.0)  # the actor's own work, which the environment's time leaves out
    assert timed.recv().observation == [2]
    assert counted.take({"environment": 1}) == {"environment": pytest.approx(0.75)}
    timed.close()
    assert environment.closed
