"""From a stream of environment steps to the rows and items of replay.

An item of n-step transitions spans `frame_stack + n_steps` rows. Its first `frame_stack` observations are
the stack it starts from; the rows after them hold the actions taken, their rewards and discounts, and the
observations that followed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from gorila_jax.rl.priorities import priorities, recent_td_errors
from gorila_jax.rl.returns import clip_rewards
from gorila_jax.types import EnvironmentStep, ReplayWriter, Step

NO_ACTION = np.int32(0)
NO_REWARD = np.float32(0)
NO_DISCOUNT = np.float32(1)


class ActorStep(NamedTuple):
    """One step of all environments, and what the actor's network said at both of its ends."""

    actions: np.ndarray  # [E] int32
    q_taken: np.ndarray  # [E] float32, Q of those actions when they were chosen
    step: EnvironmentStep  # what the environments answered
    values: np.ndarray  # [E] float32, the largest Q of the observations in `step`
    states: np.ndarray  # [E, K] float32, the network's before it saw those observations

    def append_to(self, writer: ReplayWriter) -> None:
        """Adds a row to the stream of every environment whose action was taken: none where `first` holds."""
        step = self.step
        taken = ~step.first
        rows = Step(step.observation, self.actions, step.reward, step.discount, taken)
        if not taken.all():
            rows = Step(*(field[taken] for field in rows))
        writer.append_each(np.flatnonzero(taken).tolist(), rows)


class Accumulator(Protocol):
    """Feeds a writer; one per actor."""

    def observe(self, seen: ActorStep) -> None:
        """Takes in one step of all environments."""


class TransitionAccumulator:
    """n-step transitions: an episode of L real steps becomes exactly L items.

    At an episode's start its first observation is repeated to fill the stack. At its end the windows
    that would reach beyond it are padded with rows that are not `valid`; they repeat the last
    observation, which is never bootstrapped from.

    An item enters with the absolute TD error of the actor's own Q values as its priority, at no cost but
    arithmetic (Ape-X, Horgan et al. 2018, section 3). Uniform tables ignore it.
    """

    def __init__(
        self,
        writer: ReplayWriter,
        num_environments: int,
        frame_stack: int,
        n_steps: int,
        max_abs_reward: float = 0.0,
    ):
        """
        Args:
          writer: of one table, with a stream per environment.
          num_environments, frame_stack, n_steps: E, the observations of a stack, and n.
          max_abs_reward: as in `LearnerConfig`: rewards count in a priority as they do in the loss.
        """
        self._writer = writer
        self._frame_stack = frame_stack
        self._n_steps = n_steps
        self._max_abs_reward = max_abs_reward
        self._real_steps = [0] * num_environments  # of the running episode
        # [n, E] of the last n steps, the newest in the last row
        self._rewards = np.zeros((n_steps, num_environments), np.float32)
        self._discounts = np.zeros_like(self._rewards)
        self._q_taken = np.zeros_like(self._rewards)

    def observe(self, seen: ActorStep) -> None:
        step = seen.step
        for recent, new in (
            (self._rewards, clip_rewards(step.reward, self._max_abs_reward)),
            (self._discounts, step.discount),
            (self._q_taken, seen.q_taken),
        ):
            shift_in(recent, new)
        errors = recent_td_errors(self._rewards, self._discounts, self._q_taken, seen.values)
        # [n, E], by number of steps. What is not finite is for the learner to refuse, count and explain.
        first_priorities = priorities(np.where(np.isfinite(errors), errors, 0.0))
        seen.append_to(self._writer)
        for e in range(len(self._real_steps)):
            if step.first[e]:
                self._begin(e, step.observation[e])
            else:
                self._extend(e, first_priorities[:, e])
                if step.end[e]:
                    self._end(e, step.observation[e], first_priorities[:, e])

    def _begin(self, e: int, observation: np.ndarray) -> None:
        self._writer.end_episode(e)
        self._real_steps[e] = 0
        for _ in range(self._frame_stack):
            self._writer.append(e, padding(observation))

    def _extend(self, e: int, first_priorities: np.ndarray) -> None:
        """`first_priorities` [n]: of the transitions over the last 1, 2, ... n steps."""
        self._real_steps[e] += 1
        if self._real_steps[e] >= self._n_steps:
            self._writer.insert(e, float(first_priorities[-1]))

    def _end(self, e: int, observation: np.ndarray, first_priorities: np.ndarray) -> None:
        """Fills up the windows that the episode's end has cut short."""
        for padded in range(1, self._n_steps):
            self._writer.append(e, padding(observation))
            if self._real_steps[e] + padded >= self._n_steps:
                self._writer.insert(e, float(first_priorities[-1 - padded]))
        self._writer.end_episode(e)


def shift_in(recent: np.ndarray, new: np.ndarray) -> None:
    """The oldest row leaves `recent` [rows, E], and `new` [E] becomes its last one."""
    recent[:-1] = recent[1:]
    recent[-1] = new


def padding(observation: np.ndarray) -> Step:
    """A row that means nothing, but where it holds the observation that an episode begins with."""
    return Step(observation, NO_ACTION, NO_REWARD, NO_DISCOUNT, np.False_)
