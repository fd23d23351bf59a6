"""Scores of whole games, from a stream of environment steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gorila_jax.rl.returns import clip_rewards
from gorila_jax.types import End, EnvironmentStep


class Game(NamedTuple):
    """One game from its start to its end, all lives included."""

    environment: int
    score: float  # undiscounted sum of raw rewards
    steps: int
    end: End  # GAME_OVER or TIME_LIMIT
    clipped_score: float  # the sum of the rewards as the loss clips them


class Scores:
    """Adds the rewards of E environments up to games. A lost life ends none."""

    def __init__(self, num_environments: int, max_abs_reward: float = 0.0) -> None:
        """`max_abs_reward` as in `LearnerConfig`; 0: not clipped."""
        self._max_abs_reward = max_abs_reward
        self.running = np.zeros(num_environments, np.float64)  # [E], of the games under way
        self._clipped = np.zeros_like(self.running)
        self._steps = np.zeros(num_environments, np.int64)

    def take(self, step: EnvironmentStep) -> list[Game]:
        """Counts one step of every environment; returns the games that ended with it."""
        reward = np.where(step.first, 0, step.reward)
        self.running += reward
        self._clipped += clip_rewards(reward, self._max_abs_reward)
        self._steps += ~step.first
        ended = np.flatnonzero((step.end == End.GAME_OVER) | (step.end == End.TIME_LIMIT))
        games = [
            Game(
                environment=int(e),
                score=float(self.running[e]),
                steps=int(self._steps[e]),
                end=End(step.end[e]),
                clipped_score=float(self._clipped[e]),
            )
            for e in ended
        ]
        self.running[ended] = self._clipped[ended] = 0
        self._steps[ended] = 0
        return games
