"""From a stream of environment steps to the sequences of recurrent agents."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable

import numpy as np

from gorila_jax.actor.accumulator import ActorStep, padding, shift_in
from gorila_jax.rl.priorities import sequence_priorities
from gorila_jax.rl.rescaling import Rescaling
from gorila_jax.rl.returns import clip_rewards
from gorila_jax.rl.sequences import sequence_td_errors
from gorila_jax.rl.windows import Layout
from gorila_jax.types import NO_STATE, STORED_STATE, ReplayWriter


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

    def observe(self, seen: ActorStep) -> None:
        step = seen.step
        for recent, new in (
            (self._rewards, clip_rewards(step.reward, self._max_abs_reward)),
            (self._discounts, step.discount),
            (self._q_taken, seen.q_taken),
            (self._values, seen.values),
        ):
            shift_in(recent, new)
        seen.append_to(self._writer)
        priorities = functools.cache(self._priorities)  # after this step, by the number of missing rows
        for e, stream in enumerate(self._streams):
            if step.first[e]:
                self._begin(e, stream, step.observation[e])
            else:
                stream.steps += 1
            self._keep_state(stream, seen.states[e])
            if stream.steps == self._end_of(stream.made):
                self._insert(e, stream, priorities(0))
            if step.end[e]:
                self._end(e, stream, step.observation[e], priorities)

    def _begin(self, e: int, stream: _Stream, observation: np.ndarray) -> None:
        self._writer.end_episode(e)
        stream.steps = stream.made = 0
        stream.states.clear()
        for _ in range(self._layout.burn_in_steps + self._layout.frame_stack):
            self._writer.append(e, padding(observation))

    def _keep_state(self, stream: _Stream, state: np.ndarray) -> None:
        """Keeps the state [K] for every sequence whose first observation is the newest one.

        A sequence whose burn-in would begin before the episode does is one of the first observation's.
        """
        layout = self._layout
        while max(0, stream.begun * layout.stride_steps - layout.burn_in_steps) == stream.steps:
            stream.states.append(_stored(state) if layout.stores_state else NO_STATE)

    def _end_of(self, sequence: int) -> int:
        """The steps of an episode after which a sequence of it is whole."""
        layout = self._layout
        return sequence * layout.stride_steps + layout.length_steps + layout.n_steps - 1

    def _end(
        self, e: int, stream: _Stream, observation: np.ndarray, priorities: Callable[[int], np.ndarray]
    ) -> None:
        """Fills up the sequences that the episode's end has cut short."""
        padded = 0
        while stream.made * self._layout.stride_steps < stream.steps:
            missing = self._end_of(stream.made) - stream.steps
            for _ in range(missing - padded):
                self._writer.append(e, padding(observation))
            padded = missing
            self._insert(e, stream, priorities(missing))
        self._writer.end_episode(e)

    def _insert(self, e: int, stream: _Stream, priorities: np.ndarray) -> None:
        """Makes an item of the last rows; `priorities` [E] are of all environments' last rows."""
        self._writer.insert(e, float(priorities[e]), stream.states.popleft())
        stream.made += 1

    def _priorities(self, missing: int) -> np.ndarray:
        """[E] of the sequence that ends `missing` rows after the newest step, in each environment."""
        length, rows = self._layout.length_steps, len(self._rewards)
        # What is rolled round to the end stands for the missing rows, which are not valid and change nothing.
        q_taken, rewards, discounts, values = (
            np.roll(recent, -missing, axis=0)
            for recent in (self._q_taken, self._rewards, self._discounts, self._values)
        )
        valid = np.broadcast_to((np.arange(rows) < rows - missing)[:, None], rewards.shape)
        td_errors = sequence_td_errors(q_taken[:length], rewards, discounts, valid, values, self._rescaling)
        # What is not finite is for the learner to refuse, count and explain.
        td_errors = np.where(np.isfinite(td_errors), td_errors, 0.0)
        return sequence_priorities(td_errors, valid[:length], self._priority_eta)


def _stored(state: np.ndarray) -> np.ndarray:
    """The state [K] float32 as a replay holds it; a cell may have counted beyond what fits.

    What is not finite stays so: it is for the learner to refuse, count and explain.
    """
    largest = np.finfo(STORED_STATE).max
    return np.where(np.isinf(state), state, np.clip(state, -largest, largest)).astype(STORED_STATE)


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
