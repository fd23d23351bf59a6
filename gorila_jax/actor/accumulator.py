"""From a stream of environment steps to the rows and items of replay (DESIGN: windows).

An item of n-step transitions spans `frame_stack + n_steps` rows. Its first `frame_stack` observations are
the stack it starts from; the rows after them hold the actions taken, their rewards and discounts, and the
observations that followed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gorila_jax.types import EnvironmentStep, ReplayWriter, Step

NO_ACTION = np.int32(0)
NO_REWARD = np.float32(0)
NO_DISCOUNT = np.float32(1)


class Accumulator(Protocol):
    """Feeds a writer; one per actor."""

    def observe(self, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Takes in what the environments said after `actions` [E] int32."""


class TransitionAccumulator:
    """n-step transitions: an episode of L real steps becomes exactly L items.

    At an episode's start its first observation is repeated to fill the stack. At its end the windows
    that would reach beyond it are padded with rows that are not `valid`; they repeat the last
    observation, which is never bootstrapped from.
    """

    def __init__(self, writer: ReplayWriter, num_environments: int, frame_stack: int, n_steps: int):
        self._writer = writer
        self._frame_stack = frame_stack
        self._n_steps = n_steps
        self._real_steps = [0] * num_environments  # of the running episode

    def observe(self, actions: np.ndarray, step: EnvironmentStep) -> None:
        for e in range(len(self._real_steps)):
            if step.first[e]:
                self._begin(e, step.observation[e])
            else:
                row = Step(step.observation[e], actions[e], step.reward[e], step.discount[e], np.True_)
                self._extend(e, row, ended=bool(step.end[e]))

    def _begin(self, e: int, observation: np.ndarray) -> None:
        self._writer.end_episode(e)
        self._real_steps[e] = 0
        for _ in range(self._frame_stack):
            self._writer.append(e, _padding(observation))

    def _extend(self, e: int, row: Step, ended: bool) -> None:
        self._writer.append(e, row)
        self._real_steps[e] += 1
        if self._real_steps[e] >= self._n_steps:
            self._writer.insert(e, priority=1.0)
        if ended:
            for padded in range(1, self._n_steps):
                self._writer.append(e, _padding(row.observation))
                if self._real_steps[e] + padded >= self._n_steps:
                    self._writer.insert(e, priority=1.0)
            self._writer.end_episode(e)


def _padding(observation: np.ndarray) -> Step:
    return Step(observation, NO_ACTION, NO_REWARD, NO_DISCOUNT, np.False_)
