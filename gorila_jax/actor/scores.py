"""Scores of whole games, from a stream of environment steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gorila_jax.types import End, EnvironmentStep


class Game(NamedTuple):
    """One game from its start to its end, all lives included."""

    environment: int
    score: float  # undiscounted sum of raw rewards
    steps: int
    end: End  # GAME_OVER or TIME_LIMIT


class Scores:
    """Adds the rewards of E environments up to games. A lost life ends none."""

    def __init__(self, num_environments: int) -> None:
        self.running = np.zeros(num_environments, np.float64)  # [E], of the games under way
        self._steps = np.zeros(num_environments, np.int64)

    def take(self, step: EnvironmentStep) -> list[Game]:
        """Counts one step of every environment; returns the games that ended with it."""
        self.running += np.where(step.first, 0, step.reward)
        self._steps += ~step.first
        ended = np.flatnonzero((step.end == End.GAME_OVER) | (step.end == End.TIME_LIMIT))
        games = [Game(int(e), float(self.running[e]), int(self._steps[e]), End(step.end[e])) for e in ended]
        self.running[ended] = 0
        self._steps[ended] = 0
        return games
