"""Environments as a user might write them, named in tests as `tests.environments.user_environments:...`."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Starts at a random place of 0..9; action 2 (of 1 and 2) walks up and pays 1, reaching 12 is the end."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 20.0, (2,), np.float64)
        self.action_space = spaces.Discrete(2, start=1)
        self._buffer = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._buffer[:] = (self.np_random.integers(10), self.np_random.random())
        return self._buffer, {"odd": object()}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self._buffer[0] += action - 1
        return self._buffer, float(action - 1), bool(self._buffer[0] >= 12), False, {"odd": "changed"}

    def render(self) -> np.ndarray:
        return np.full((7, 9, 3), self._buffer[0], np.uint8)


class _Spaces(gymnasium.Env):
    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


def limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Walk(), 3)


def continuous() -> gymnasium.Env:
    return _Spaces(spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)))


def several_actions() -> gymnasium.Env:
    return _Spaces(spaces.Box(0, 1, (2,)), spaces.MultiDiscrete([2, 3]))


def dictionary() -> gymnasium.Env:
    return _Spaces(spaces.Dict(a=spaces.Box(0, 1, (2,))), spaces.Discrete(2))


def both_at_once() -> gymnasium.Env:
    """Its second step ends the game and the time at once."""

    class Both(_Spaces):
        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
            self._steps = 0
            return super().reset(seed=seed)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            self._steps += 1
            return self.observation_space.sample(), 0.0, self._steps == 2, self._steps == 2, {}

    return Both(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def misshapen() -> gymnasium.Env:
    class Misshapen(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            return np.zeros(5, np.float32), 0.0, False, False, {}

    return Misshapen(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def dying() -> gymnasium.Env:
    """Ends its process at action 1, as a crash in its own C++ would."""

    class Dying(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            if action == 1:
                os._exit(3)
            return super().step(action)

    return Dying(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def unreachable() -> gymnasium.Env:
    """Raises what a broken pipe would, at action 1."""

    class Unreachable(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            if action == 1:
                raise ConnectionError("robot gone")
            return super().step(action)

    return Unreachable(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def exiting() -> gymnasium.Env:
    class Exiting(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            raise SystemExit(0)

    return Exiting(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


THE_ONE = Walk()


def the_same_again() -> gymnasium.Env:
    return THE_ONE


def unmakeable() -> gymnasium.Env:
    raise RuntimeError("no robot")


def wants_arguments(port: int) -> gymnasium.Env:
    raise AssertionError


def without_spaces() -> gymnasium.Env:
    return gymnasium.Env()


def huge_integers() -> gymnasium.Env:
    return _Spaces(spaces.Box(-(2**62), 2**62, (2,), np.int64), spaces.Discrete(2))


def small_integers() -> gymnasium.Env:
    return _Spaces(spaces.Box(-5, 2**31 - 1, (2,), np.int64), spaces.Discrete(2))


def nothing_to_see() -> gymnasium.Env:
    return _Spaces(spaces.Box(0, 1, (0,)), spaces.Discrete(2))


def failing() -> gymnasium.Env:
    """Raises at action 1."""

    class Failing(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            if action == 1:
                raise RuntimeError("as it was written to")
            return super().step(action)

    return Failing(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def hanging() -> gymnasium.Env:
    """Never comes back from action 1."""

    class Hanging(_Spaces):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            if action == 1:
                time.sleep(3600)
            return super().step(action)

    return Hanging(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def no_environment() -> str:
    return "not an environment"


not_callable = 3
