"""Small problems that cannot be solved without a memory, each as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 4
DELAY_STEPS = 10


class CueRecall(gymnasium.Env[np.ndarray, int]):
    """One of four cues shows in the first observation and never again; ten steps later it must be named.

    Observations are the cue, one-hot, and whether it is asked for now. The action taken then, the last one of
    the episode, brings 1 if it is the cue and 0 if not; no other action brings or changes anything. Chance
    is 0.25.
    """

    observation_space = spaces.Box(0.0, 1.0, (CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(CUES))
        self._steps = 0
        return np.eye(CUES + 1, dtype=np.float32)[self._cue], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        asked = self._steps == DELAY_STEPS
        self._steps += 1
        observation = np.zeros(CUES + 1, np.float32)
        observation[CUES] = self._steps == DELAY_STEPS
        return observation, float(asked and int(action) == self._cue), asked, False, {}


def cue_recall() -> gymnasium.Env[np.ndarray, int]:
    return CueRecall()


class HiddenVelocities(gymnasium.ObservationWrapper[np.ndarray, int, np.ndarray]):
    """CartPole that shows where cart and pole are, and not how fast they move."""

    def __init__(self, env: gymnasium.Env[np.ndarray, int]):
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


def hidden_cartpole() -> gymnasium.Env[np.ndarray, int]:
    return HiddenVelocities(gymnasium.make("CartPole-v1"))
