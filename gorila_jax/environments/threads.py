"""Environments in a thread each: for those that wait for something and compute little."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from gorila_jax.types import ConfigError


class ThreadVectorEnv(VectorEnv):
    """Makes, steps, draws and closes every environment in a daemon thread of its own, since there are
    simulators that may only be used where they were made. Resets in `AutoresetMode.NEXT_STEP`.

    What an environment raises is raised here as it is, with its traceback and a note that names its index,
    as soon as it happens: the others may take their time.

    All threads take their steps on one core: handing the interpreter's lock to a thread of another core costs
    several times as much as the step of an environment that waits. They make, reset, draw and close on all
    cores, since the processes and threads that an environment starts meanwhile inherit them. What is
    started in a step stays on that one core.

    Args:
        makers: of one environment each. Their observations are of the shape that their space says, and
            their infos have the same keys, of numbers.

    Raises:
        ConfigError: the environments' spaces differ.
    """

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]]):
        self.num_envs = len(makers)
        self._farewell = _Round(self.num_envs, _Worker.close)
        cores = _Cores.choose()
        self._workers = [_Worker(index, maker, self._farewell, cores) for index, maker in enumerate(makers)]
        for worker, following in itertools.pairwise(self._workers):
            worker.following = following
        self._step: _Step | None = None
        try:
            for worker in self._workers:
                worker.thread.start()
            self._call_all(_Worker.make)
            self._check_spaces()
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise
        first = self._workers[0].env
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)

    @property
    def envs(self) -> list[gymnasium.Env]:
        return [worker.env for worker in self._workers]

    def reset(
        self, *, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        seeds = [None] * self.num_envs if seed is None else seed
        batch = _Batch.empty(self.num_envs, self.single_observation_space)

        def reset(worker: _Worker) -> None:
            worker.keep_to_one_core(False)
            observation, info = worker.env.reset(seed=seeds[worker.index], options=options)
            worker.ended = False
            batch.put(worker.index, observation, 0.0, False, False, info)

        self._call_all(reset)
        return batch.observation, batch.stacked_infos()

    def step_async(self, actions: np.ndarray) -> None:
        """Returns when every environment is about to begin its step.

        Whoever calls this goes on to compute, and would keep the interpreter's lock from the environments
        for many times as long as it takes them to begin to wait.

        Args:
            actions: [E], which must not change before `step_wait`.
        """
        batch = _Batch.empty(self.num_envs, self.single_observation_space)

        def step(worker: _Worker) -> None:
            if worker.ended:
                worker.keep_to_one_core(False)
                observation, info = worker.env.reset()
                reward, terminated, truncated = 0.0, False, False
            else:
                worker.keep_to_one_core(True)
                observation, reward, terminated, truncated, info = worker.env.step(actions[worker.index])
            worker.ended = bool(terminated or truncated)
            batch.put(worker.index, observation, reward, terminated, truncated, info)

        self._step = _Step(self._begin(step), batch)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        assert self._step is not None
        (round_, batch), self._step = self._step, None
        round_.wait()
        return batch.observation, batch.reward, batch.terminated, batch.truncated, batch.stacked_infos()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        self.step_async(actions)
        return self.step_wait()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What the method `name` of every environment returns."""
        results: list[Any] = [None] * self.num_envs

        def call(worker: _Worker) -> None:
            worker.keep_to_one_core(False)
            results[worker.index] = worker.env.get_wrapper_attr(name)(*args, **kwargs)

        self._call_all(call)
        return tuple(results)

    def close_extras(self, timeout: float | None = 5.0) -> None:
        """Each thread closes its environment when it has ended what it does, and then ends. Those that have
        not come so far within `timeout` seconds are left to do so later, or never.

        Raises the first error of an environment's `close`, when the others are closed too.
        """
        self.closed = True
        self._ask_to_end()
        if self._farewell.wait_for_all(timeout):
            for worker in self._workers:
                worker.thread.join()
        self._farewell.raise_error()

    def __del__(self) -> None:
        """Without waiting: when the interpreter exits, the threads have stopped for good."""
        if not self.closed:
            self._ask_to_end()

    def _ask_to_end(self) -> None:
        for worker in self._workers:
            worker.inbox.put(None)

    def _begin(self, call: Callable[[_Worker], None]) -> _Round:
        if self.closed:
            raise ClosedEnvironmentError("these environments have been closed")
        round_ = _Round(self.num_envs, call)
        self._workers[0].inbox.put(round_)
        round_.begun.get()
        return round_

    def _call_all(self, call: Callable[[_Worker], None]) -> None:
        self._begin(call).wait()

    def _check_spaces(self) -> None:
        first = self._workers[0].env
        for worker in self._workers:
            for kind in ("observation_space", "action_space"):
                own, common = getattr(worker.env, kind), getattr(first, kind)
                if own != common:
                    raise ConfigError(
                        f"environment {worker.index} has the {kind} {own}, but environment 0 has {common}"
                    )


class _Batch(NamedTuple):
    """What the environments answer, each in its place. Handed out, and so never used again."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[Mapping[str, Any]]

    @classmethod
    def empty(cls, size: int, space: gymnasium.Space) -> _Batch:
        flags = np.zeros((2, size), bool)
        observation = np.empty((size, *space.shape), space.dtype)
        return cls(observation, np.zeros(size), flags[0], flags[1], [{}] * size)

    def put(
        self, index: int, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping
    ) -> None:
        self.observation[index] = observation
        self.reward[index] = reward
        self.terminated[index] = terminated
        self.truncated[index] = truncated
        self.infos[index] = info

    def stacked_infos(self) -> dict[str, np.ndarray]:
        return {key: np.array([info[key] for info in self.infos]) for key in self.infos[0]}


class _Round:
    """One call of every environment, each in its own thread.

    Each round has a lock and queues of its own, so that a thread which is late, after another's error,
    disturbs no later round.
    """

    def __init__(self, size: int, call: Callable[[_Worker], None]):
        self.begun: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._call = call
        self._lock = threading.Lock()
        self._left = size
        self._error: BaseException | None = None
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()  # the first error, and the end

    def run(self, worker: _Worker) -> None:
        error = None
        try:
            self._call(worker)
        except BaseException as raised:  # handed to the thread that waits for us, with its traceback
            raised.add_note(f"in environment {worker.index}")
            error = raised
        with self._lock:
            self._left -= 1
            last = self._left == 0
            first_error = error is not None and self._error is None
            if first_error:
                self._error = error
        if first_error or last:  # who waits is woken once, and not by each
            self._news.put(None)

    def wait(self) -> None:
        """Until all have done it, or one has failed. Raises its error."""
        self._news.get()
        self.raise_error()

    def wait_for_all(self, timeout: float | None) -> bool:
        """Whether all have done it, or failed, with so many seconds for the first error and for the rest."""
        try:
            while self._left:
                self._news.get(timeout=timeout)
        except queue.Empty:
            return False
        return True

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class _Step(NamedTuple):
    round_: _Round
    batch: _Batch


class _Cores(NamedTuple):
    """Those that threads may run on."""

    all: set[int]
    one: set[int]

    @classmethod
    def choose(cls) -> _Cores:
        """All that the caller may use, and one of them by chance: other vectors and programs choose too."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        return cls(set(cores), {random.SystemRandom().choice(cores)})


class _Worker:
    """An environment and its thread. It knows nothing of the vector, which can be freed so."""

    env: gymnasium.Env

    def __init__(self, index: int, maker: Callable[[], gymnasium.Env], farewell: _Round, cores: _Cores):
        self.index = index
        self.inbox: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self.following: _Worker | None = None
        self.ended = False  # its episode, by the previous step
        self._maker = maker
        self._made = False
        self._farewell = farewell
        self._cores = cores
        self._on_one_core = False
        # Here and not in runtime/, because only this knows how long it has to live. A daemon, because a step
        # that hangs cannot be taken back.
        self.thread = threading.Thread(  # noqa: TID251
            target=self._run, name=f"environment-{index}", daemon=True
        )

    def make(self) -> None:
        self.env = self._maker()
        self._made = True

    def close(self) -> None:
        if self._made:
            self.keep_to_one_core(False)
            self.env.close()

    def keep_to_one_core(self, wanted: bool) -> None:
        """Of this thread, by itself. Changes nothing where the system knows no such thing, or forbids it."""
        if self._on_one_core != wanted and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cores.one if wanted else self._cores.all)
            self._on_one_core = wanted

    def _run(self) -> None:
        while (round_ := self.inbox.get()) is not None:
            # Each wakes the next one just before its own call. Woken all at once, they would fight over the
            # interpreter's lock, on all cores, when each has only to begin to wait.
            if self.following is not None:
                self.following.inbox.put(round_)
            else:
                round_.begun.put(None)
            round_.run(self)
            del round_  # it may hold an error, whose traceback holds the vector
        self._farewell.run(self)
