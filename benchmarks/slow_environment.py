"""An environment that takes its time. Imported in worker processes, so it imports next to nothing."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_S = 0.05
STEPS_PER_EPISODE = 200


class Robot(gymnasium.Env):
    """64 sensors and 5 actions; every step takes 50 ms, in which the computer has nothing to do for it."""

    observation_space = spaces.Box(-1.0, 1.0, (64,), np.float32)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        time.sleep(STEP_S)
        self._steps += 1
        return self._observe(), float(action == 2), False, self._steps == STEPS_PER_EPISODE, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 64).astype(np.float32)
