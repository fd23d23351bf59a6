"""From a stream of environment steps to the sequences of recurrent agents."""

from __future__ import annotations

import collections

import numpy as np

from gorila_jax.actor.accumulator import padding, shift_in
from gorila_jax.rl.priorities import sequence_priorities
from gorila_jax.rl.rescaling import Rescaling
from gorila_jax.rl.returns import clip_rewards
from gorila_jax.rl.sequences import sequence_td_errors
from gorila_jax.rl.windows import Layout
from gorila_jax.types import NO_STATE, EnvironmentStep, ReplayWriter, Step


class SequenceAccumulator:
    """Overlapping sequences of an episode, each with the recurrent state that it begins with.

    Sequence k of an episode trains the steps from k * stride on, as far as there are any: an episode of L
    steps gives L / stride sequences, rounded up. The first observation repeats in place of burn-in before it;
    behind the end come rows that are not `valid`. With a length and a stride of one step these are the
    transitions of `TransitionAccumulator`. (R2D2, Kapturowski et al. 2019, section 2.3; DRQN, Hausknecht &
    Stone 2015, section 4.2, whose sub-sequences begin at any step: a stride of 1.)

    A sequence enters with the priority that the actor's own Q values give it.
    """

    def __init__(
        self,
        writer: ReplayWriter,
        num_environments: int,
        layout: Layout,
        *,
        max_abs_reward: float,
        rescaling: Rescaling,
        priority_eta: float,
    ):
        """
        Args:
          writer: of one table, with a stream per environment.
          num_environments: E.
          layout: of the sequences.
          max_abs_reward, rescaling, priority_eta: as in the loss, for the priorities.
        """
        self._writer = writer
        self._layout = layout
        self._max_abs_reward = max_abs_reward
        self._rescaling = rescaling
        self._priority_eta = priority_eta
        self._streams = [_Stream() for _ in range(num_environments)]
        rows = layout.length_steps + layout.n_steps - 1  # of a trained part, after its first one
        # [M, E] of the last M steps, the newest in the last row, and [M + 1, E] of the observations.
        self._rewards = np.zeros((rows, num_environments), np.float32)
        self._discounts = np.ones_like(self._rewards)
        self._q_taken = np.zeros_like(self._rewards)
        self._values = np.zeros((rows + 1, num_environments), np.float32)

    def observe(
        self,
        actions: np.ndarray,
        q_taken: np.ndarray,
        step: EnvironmentStep,
        value: np.ndarray,
        state: np.ndarray,
    ) -> None:
        for recent, new in (
            (self._rewards, clip_rewards(step.reward, self._max_abs_reward)),
            (self._discounts, step.discount),
            (self._q_taken, q_taken),
            (self._values, value),
        ):
            shift_in(recent, new)
        for e, stream in enumerate(self._streams):
            if step.first[e]:
                self._begin(e, stream, step.observation[e])
            else:
                row = Step(step.observation[e], actions[e], step.reward[e], step.discount[e], np.True_)
                self._writer.append(e, row)
                stream.steps += 1
            self._keep_state(stream, state[e])
            if stream.steps == self._end_of(stream.made):
                self._insert(e, stream, missing=0)
            if step.end[e]:
                self._end(e, stream, step.observation[e])

    def _begin(self, e: int, stream: _Stream, observation: np.ndarray) -> None:
        self._writer.end_episode(e)
        stream.steps = stream.made = 0
        stream.states.clear()
        for _ in range(self._layout.burn_in_steps + self._layout.frame_stack):
            self._writer.append(e, padding(observation))

    def _keep_state(self, stream: _Stream, state: np.ndarray) -> None:
        """Copies the state [K] for every sequence whose first observation is the newest one.

        A sequence whose burn-in would begin before the episode does is one of the first observation's.
        """
        layout = self._layout
        while max(0, stream.begun * layout.stride_steps - layout.burn_in_steps) == stream.steps:
            stream.states.append(state.copy() if layout.stores_state else NO_STATE)

    def _end_of(self, sequence: int) -> int:
        """The steps of an episode after which a sequence of it is whole."""
        layout = self._layout
        return sequence * layout.stride_steps + layout.length_steps + layout.n_steps - 1

    def _end(self, e: int, stream: _Stream, observation: np.ndarray) -> None:
        """Fills up the sequences that the episode's end has cut short."""
        padded = 0
        while stream.made * self._layout.stride_steps < stream.steps:
            missing = self._end_of(stream.made) - stream.steps
            for _ in range(missing - padded):
                self._writer.append(e, padding(observation))
            padded = missing
            self._insert(e, stream, missing)
        self._writer.end_episode(e)

    def _insert(self, e: int, stream: _Stream, missing: int) -> None:
        """Makes an item of the last rows, of which `missing` are not real."""
        rows = len(self._rewards)
        behind = np.zeros(missing, np.float32)
        td_errors = sequence_td_errors(
            self._of_sequence(self._q_taken, e, missing)[: self._layout.length_steps],
            self._of_sequence(self._rewards, e, missing),
            self._of_sequence(self._discounts, e, missing),
            valid := np.arange(rows) < rows - missing,
            np.concatenate([self._values[missing:, e], behind]),
            self._rescaling,
        )
        # What is not finite is for the learner to refuse, count and explain.
        td_errors = np.where(np.isfinite(td_errors), td_errors, 0.0)
        priority = sequence_priorities(td_errors, valid[: self._layout.length_steps], self._priority_eta)
        self._writer.insert(e, float(priority), stream.states.popleft())
        stream.made += 1

    def _of_sequence(self, recent: np.ndarray, e: int, missing: int) -> np.ndarray:
        """The last rows of one environment [M], with zeros in place of those that are missing."""
        return np.concatenate([recent[missing:, e], np.zeros(missing, np.float32)])


class _Stream:
    """One environment's episode under way."""

    def __init__(self) -> None:
        self.steps = 0  # real ones so far
        self.made = 0  # sequences
        self.states: collections.deque[np.ndarray] = collections.deque()  # of those begun and not made

    @property
    def begun(self) -> int:
        """Sequences whose first observation has come."""
        return self.made + len(self.states)
