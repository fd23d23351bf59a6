"""Environments in threads, by environments that wait until the test lets them go on."""

from __future__ import annotations

import gc
import os
import queue
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError

from gorila_jax.environments.threads import ThreadVectorEnv
from gorila_jax.types import ConfigError

LONG_S = 60.0  # a test that waits so long has failed

QUICK, WAITS, FAILS = 0, 1, 2
"""Actions."""


class Machine:
    """What a test and its environments share."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.waiting = threading.Semaphore(0)  # released once for every step that has begun to wait
        self.lock = threading.Lock()
        self.calls: list[tuple[int, str, int]] = []  # environment, method, thread
        self.closed: list[int] = []
        self.closings = threading.Semaphore(0)


class Station(gymnasium.Env):
    """Counts its steps in its observation, and in an info; its episodes have three."""

    action_space = spaces.Discrete(3)
    render_mode = "rgb_array"

    def __init__(self, machine: Machine, index: int):
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
        self._machine = machine
        self._index = index
        self._note("make")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._note("reset")
        self._steps = 0
        return self._observe(), {"steps": 0}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._note("step")
        if action == WAITS:
            self._machine.waiting.release()
            assert self._machine.released.wait(LONG_S)
        if action == FAILS:
            raise ZeroDivisionError("as asked for")
        self._steps += 1
        return self._observe(), 1.0, self._steps == 3, False, {"steps": self._steps}

    def render(self) -> np.ndarray:
        self._note("render")
        return np.full((2, 2, 3), self._index, np.uint8)

    def close(self) -> None:
        self._note("close")
        self._machine.closed.append(self._index)
        self._machine.closings.release()

    def _observe(self) -> np.ndarray:
        return np.array([self._index, self._steps], np.float32)

    def _note(self, method: str) -> None:
        with self._machine.lock:
            self._machine.calls.append((self._index, method, threading.get_ident()))


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("environment-")}


def join(left: set[threading.Thread]) -> None:
    for thread in left:
        thread.join(LONG_S)
        assert not thread.is_alive()


def makers(machine: Machine, size: int) -> list[Callable[[], gymnasium.Env]]:
    return [lambda index=index: Station(machine, index) for index in range(size)]


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.released.set()


def test_all_steps_run_at_once_and_beside_the_caller(machine):
    vector = ThreadVectorEnv(makers(machine, 64))
    vector.reset()
    vector.step_async(np.full(64, WAITS))
    for _ in range(64):
        assert machine.waiting.acquire(timeout=LONG_S)
    machine.released.set()
    observation, reward, terminated, truncated, info = vector.step_wait()
    np.testing.assert_array_equal(observation, [[index, 1] for index in range(64)])
    np.testing.assert_array_equal(reward, np.ones(64))
    assert not terminated.any()
    assert not truncated.any()
    np.testing.assert_array_equal(info["steps"], np.ones(64))
    vector.close()


def test_every_step_has_begun_when_they_are_sent(machine):
    vector = ThreadVectorEnv(makers(machine, 64))
    vector.reset()
    vector.step_async(np.full(64, WAITS))
    assert all(worker.inbox.empty() for worker in vector._workers)
    machine.released.set()
    vector.close()


def test_an_ended_episode_is_reset_by_the_next_step(machine):
    vector = ThreadVectorEnv(makers(machine, 2))
    vector.reset()
    steps = [vector.step(np.array([QUICK, QUICK])) for _ in range(5)]
    assert [list(info["steps"]) for *_, info in steps] == [[1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]
    assert [list(terminated) for _, _, terminated, _, _ in steps] == [[step == 2] * 2 for step in range(5)]
    assert [list(reward) for _, reward, *_ in steps] == [[step != 3] * 2 for step in range(5)]
    vector.step(np.array([QUICK, QUICK]))
    vector.step(np.array([QUICK, QUICK]))
    vector.reset()
    assert list(vector.step(np.array([QUICK, QUICK]))[-1]["steps"]) == [1, 1]  # and not once more
    vector.close()


def test_an_environment_is_used_in_one_thread_only_from_its_making_to_its_closing(machine):
    vector = ThreadVectorEnv(makers(machine, 3))
    vector.reset()
    vector.step(np.zeros(3, int))
    pictures = vector.call("render")
    assert [picture[0, 0, 0] for picture in pictures] == [0, 1, 2]
    vector.close()
    used: dict[int, set[int]] = {index: set() for index in range(3)}
    for index, _, thread in machine.calls:
        used[index].add(thread)
    assert [len(each) for each in used.values()] == [1, 1, 1]
    assert len(set.union(*used.values(), {threading.get_ident()})) == 4
    methods = ["make", "reset", "step", "render", "close"]
    assert [method for index, method, _ in machine.calls if index == 1] == methods


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads are not bound to cores here")
def test_only_steps_are_taken_on_one_core(machine):
    """What an environment starts when it is made or reset inherits the cores."""
    seen: dict[str, list[set[int]]] = defaultdict(list)

    class Curious(Station):
        def _note(self, method: str) -> None:
            seen[method].append(os.sched_getaffinity(0))

    cores = os.sched_getaffinity(0)
    vector = ThreadVectorEnv([lambda: Curious(machine, 0)])
    vector.reset()
    for _ in range(5):  # the fourth one resets
        vector.step(np.array([QUICK]))
    vector.call("render")
    vector.step(np.array([QUICK]))
    vector.close()
    steps = seen.pop("step")
    assert len(steps[0]) == 1
    assert steps[0] <= cores
    assert steps == [steps[0]] * 5
    assert seen == {"make": [cores], "reset": [cores] * 2, "render": [cores], "close": [cores]}
    assert os.sched_getaffinity(0) == cores


def test_an_error_names_its_environment_and_waits_for_no_other(machine):
    vector = ThreadVectorEnv(makers(machine, 3))
    vector.reset()
    with pytest.raises(ZeroDivisionError, match="as asked for") as caught:
        vector.step(np.array([WAITS, FAILS, WAITS]))
    assert not machine.released.is_set()
    assert caught.value.__notes__ == ["in environment 1"]
    assert any(frame.name == "step" and frame.filename == __file__ for frame in _frames(caught.value))
    machine.released.set()
    vector.close()
    assert sorted(machine.closed) == [0, 1, 2]


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def test_the_last_to_fail_is_heard_too(machine):
    vector = ThreadVectorEnv(makers(machine, 2))
    for _ in range(20):
        for actions in ([QUICK, FAILS], [FAILS, QUICK], [FAILS, FAILS]):
            vector.reset()
            with pytest.raises(ZeroDivisionError):
                vector.step(np.array(actions))
    vector.close()


def test_a_step_that_ends_after_another_s_error_does_not_disturb_the_next_call(machine):
    vector = ThreadVectorEnv(makers(machine, 2))
    vector.reset()
    with pytest.raises(ZeroDivisionError):
        vector.step(np.array([WAITS, FAILS]))
    vector._workers[0].inbox = ReleasingInbox(machine)
    observation, _ = vector.reset()
    np.testing.assert_array_equal(observation, [[0, 0], [1, 0]])
    assert list(vector.step(np.array([QUICK, QUICK]))[-1]["steps"]) == [1, 1]
    vector.close()


class ReleasingInbox(queue.SimpleQueue):
    """Of a worker whose environment waits: lets it go on when the next call has come."""

    def __init__(self, machine: Machine):
        super().__init__()
        self._machine = machine

    def put(self, *arguments: Any) -> None:
        super().put(*arguments)
        self._machine.released.set()


def test_closing_waits_for_a_step_under_way_and_closes_everything(machine):
    before = threads()
    vector = ThreadVectorEnv(makers(machine, 3))
    vector.reset()
    vector.step_async(np.array([WAITS, QUICK, QUICK]))
    assert machine.waiting.acquire(timeout=LONG_S)
    threading.Thread(target=_release_when_closing, args=(machine,)).start()
    vector.close(timeout=LONG_S)
    assert sorted(machine.closed) == [0, 1, 2]
    assert threads() <= before
    vector.close()
    assert len(machine.closed) == 3


def _release_when_closing(machine: Machine) -> None:
    for _ in range(2):  # both others
        assert machine.closings.acquire(timeout=LONG_S)
    machine.released.set()


def test_a_step_that_hangs_is_left_behind(machine):
    before = threads()
    vector = ThreadVectorEnv(makers(machine, 3))
    vector.reset()
    vector.step_async(np.array([QUICK, WAITS, QUICK]))
    assert machine.waiting.acquire(timeout=LONG_S)
    vector.close(timeout=0.05)
    left = threads() - before
    assert [thread.name for thread in left if thread.name == "environment-1"]
    assert all(thread.daemon for thread in left)
    assert 1 not in machine.closed
    machine.released.set()
    join(left)
    assert sorted(machine.closed) == [0, 1, 2]


def test_an_error_in_closing_is_raised_when_all_are_closed(machine):
    class Sticky(Station):
        def close(self) -> None:
            super().close()
            raise OSError("the door is stuck")

    before = threads()
    vector = ThreadVectorEnv([lambda: Sticky(machine, 0), *makers(machine, 3)[1:]])
    with pytest.raises(OSError, match="the door is stuck") as caught:
        vector.close()
    assert caught.value.__notes__ == ["in environment 0"]
    assert sorted(machine.closed) == [0, 1, 2]
    assert threads() <= before
    vector.close()


def test_one_that_cannot_be_made_closes_the_others(machine):
    def fail() -> gymnasium.Env:
        raise ConnectionRefusedError("nobody there")

    before = threads()
    with pytest.raises(ConnectionRefusedError, match="nobody there") as caught:
        ThreadVectorEnv([*makers(machine, 2), fail])
    assert caught.value.__notes__ == ["in environment 2"]
    assert sorted(machine.closed) == [0, 1]
    assert threads() <= before


@pytest.mark.parametrize(
    ("kind", "space"),
    [("observation_space", spaces.Box(0.0, 1.0, (3,))), ("action_space", spaces.Discrete(4))],
)
def test_spaces_that_differ_are_refused(machine, kind, space):
    class Other(Station):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            setattr(self, kind, space)

    before = threads()
    with pytest.raises(ConfigError, match=f"environment 1 has the {kind} .*, but environment 0 has"):
        ThreadVectorEnv([lambda: Station(machine, 0), lambda: Other(machine, 1)])
    assert sorted(machine.closed) == [0, 1]
    assert threads() <= before


def test_a_closed_vector_refuses_calls(machine):
    vector = ThreadVectorEnv(makers(machine, 1))
    vector.reset()
    vector.close()
    with pytest.raises(ClosedEnvironmentError, match="have been closed"):
        vector.reset()


@pytest.mark.parametrize("failed", [False, True])
def test_a_vector_that_nobody_holds_ends_its_threads(machine, failed):
    before = threads()
    vector = ThreadVectorEnv(makers(machine, 2))
    vector.reset()
    if failed:
        with pytest.raises(ZeroDivisionError):
            vector.step(np.array([FAILS, QUICK]))
        vector.reset()  # the threads have let go of the error, whose traceback holds the vector
    own = threads() - before
    assert len(own) == 2
    del vector
    gc.collect()
    join(own)
    assert sorted(machine.closed) == [0, 1]
