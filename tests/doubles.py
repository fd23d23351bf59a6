"""Stand-ins for the two ends of an actor: an environment whose every step is scripted, and a replay
writer that remembers everything."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gorila_jax.environments.ends import end_discounts, label_ends
from gorila_jax.environments.order import CallOrder
from gorila_jax.types import (
    NO_STATE,
    End,
    Environment,
    EnvironmentSpec,
    EnvironmentStep,
    ReplayError,
    Step,
)


class Episode(NamedTuple):
    """One scripted episode: as many real steps as it has rewards; `ends` hold together at the last one.

    `ends=(End.GAME_OVER, End.TIME_LIMIT)` raises both flags at once.
    """

    rewards: Sequence[float]
    ends: Sequence[End] = (End.GAME_OVER,)


def episode(length_steps: int, end: End = End.GAME_OVER, reward: float = 1.0) -> Episode:
    """An episode of `length_steps` real steps of equal reward."""
    return Episode((reward,) * length_steps, (end,))


class CounterEnv(Environment):
    """A batch of environments whose observation is the number of the step and whose rest is a script.

    Each environment counts the observations it has given since it was made, from 0 on and through all
    episodes, so that no two of its observations are equal: an episode of L steps shows L + 1 numbers, and
    the next one starts with the number after that. A script that has run out starts again.
    Like EnvPool it resets in the step after an end, ignoring that step's action.

    Args:
        scripts: of each environment its episodes; E is their number.
        discount: gamma.
        observation_shape, observation_dtype: each observation is its number, repeated to this shape.
        num_actions: as told in `spec`; an action outside raises ValueError.
        offset: environment e counts from e * offset on, so that streams can be told apart.
        reset_reward: the (meaningless) reward of first steps; set a big one to catch code that uses it.
        same_step_reset: a faulty environment: it gives the next episode's first observation together with
            the end, takes the next action for real, and never raises `first` but in `reset`.
        empty_at: the number (from 0) of the step that returns a batch of no environments.

    Attributes:
        actions: every action received, one [E] int64 array per step, ignored ones included.
        steps: every `EnvironmentStep` given, that of `reset` first.
        closed: whether `close` was called.
    """

    def __init__(
        self,
        scripts: Sequence[Sequence[Episode]],
        discount: float = 0.99,
        *,
        observation_shape: tuple[int, ...] = (),
        observation_dtype: np.typing.DTypeLike = np.int32,
        num_actions: int = 4,
        offset: int = 0,
        reset_reward: float = 0.0,
        same_step_reset: bool = False,
        empty_at: int | None = None,
    ):
        if not scripts or any(not script or any(not e.rewards for e in script) for script in scripts):
            raise ValueError("every environment needs an episode, and every episode a step")
        self.num_environments = len(scripts)
        self.spec = EnvironmentSpec(
            name="Counter",
            observation_shape=tuple(observation_shape),
            observation_dtype=np.dtype(observation_dtype),
            num_actions=num_actions,
            frames_per_step=1,
            settings={},
        )
        self.actions: list[np.ndarray] = []
        self.steps: list[EnvironmentStep] = []
        self._order = CallOrder("Counter")
        self._scripts = scripts
        self._gamma = discount
        self._reset_reward = reset_reward
        self._same_step_reset = same_step_reset
        self._empty_at = empty_at
        self._counters = np.arange(self.num_environments, dtype=np.int64) * offset
        self._episodes = np.zeros(self.num_environments, np.int64)  # which of its script
        self._positions = np.zeros(self.num_environments, np.int64)  # real steps taken in it
        self._started = False
        self._ended = np.zeros(self.num_environments, bool)  # by the previous step

    def reset(self) -> EnvironmentStep:
        """Starts the next episode everywhere (the first time: the first); `first` is true everywhere."""
        self._order.reset()
        if self._started:
            self._counters += 1
            self._episodes += self._positions > 0
        self._started = True
        self._positions[:] = 0
        self._ended[:] = False
        rewards = np.full(self.num_environments, self._reset_reward)
        return self._emit(rewards, [()] * len(rewards), np.ones(len(rewards), bool))

    def send(self, actions: np.ndarray) -> None:
        """Takes `actions` [E] of any integer type and keeps a copy of them."""
        actions = np.array(actions)
        if actions.shape != (self.num_environments,) or not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions {actions.dtype}{actions.shape}, not {self.num_environments} integers")
        if np.any((actions < 0) | (actions >= self.spec.num_actions)):
            raise ValueError(f"action outside 0..{self.spec.num_actions - 1}: {actions}")
        self._order.send()
        self.actions.append(actions.astype(np.int64))

    def recv(self) -> EnvironmentStep:
        """Plays one step of the script."""
        self._order.recv()
        self._counters += 1
        first = self._ended.copy()
        rewards = np.full(self.num_environments, self._reset_reward)
        ends: list[Sequence[End]] = [()] * self.num_environments
        for e, script in enumerate(self._scripts):
            if first[e]:
                continue
            current = script[self._episodes[e] % len(script)]
            rewards[e] = current.rewards[self._positions[e]]
            self._positions[e] += 1
            if self._positions[e] == len(current.rewards):
                ends[e] = current.ends
                self._episodes[e] += 1
                self._positions[e] = 0
                if self._same_step_reset:
                    self._counters[e] += 1  # the last observation of the episode is never shown
        step = self._emit(rewards, ends, first)
        self._ended = (step.end != End.NONE) & (not self._same_step_reset)
        if len(self.actions) - 1 == self._empty_at:
            return EnvironmentStep(*(field[:0] for field in step))
        return step

    @property
    def closed(self) -> bool:
        return self._order.closed

    def close(self) -> None:
        self._order.close()

    def _emit(self, rewards: np.ndarray, ends: Sequence[Sequence[End]], first: np.ndarray) -> EnvironmentStep:
        flags = {kind: np.array([kind in of_one for of_one in ends]) for kind in End}
        end = label_ends(flags[End.GAME_OVER], flags[End.TIME_LIMIT], flags[End.LIFE_LOSS])
        shape = self.spec.observation_shape
        numbers = self._counters.astype(self.spec.observation_dtype).reshape((-1,) + (1,) * len(shape))
        step = EnvironmentStep(
            observation=np.broadcast_to(numbers, (self.num_environments, *shape)).copy(),
            reward=rewards.astype(np.float32),
            discount=end_discounts(end, self._gamma),
            end=end,
            first=first,
        )
        self.steps.append(EnvironmentStep(*(field.copy() for field in step)))
        return step


class RecordedItem(NamedTuple):
    """What one `insert` took."""

    stream: int
    priority: float
    steps: Step  # every field [W, ...], copied
    state: np.ndarray  # [K], copied


class Recorder:
    """A replay writer that keeps everything, and refuses what a real one refuses.

    Args:
        num_streams: E.
        window: W, the rows of an item.
        ready_script: what `ready` says, one after the other; true when it has run out.

    Attributes:
        rows: of each stream, every row it was given, copied, through all episodes.
        cuts: of each stream, how many rows it had at every `end_episode`.
        items: every `RecordedItem`, in the order of insertion.
        ready_calls: the timeout, in seconds, of every call of `ready`.
        closed: whether `close` was called.
    """

    def __init__(self, num_streams: int, window: int, ready_script: Iterable[bool] = ()):
        self.inserted_items = 0
        self.rows: list[list[Step]] = [[] for _ in range(num_streams)]
        self.cuts: list[list[int]] = [[] for _ in range(num_streams)]
        self.items: list[RecordedItem] = []
        self.ready_calls: list[float] = []
        self.closed = False
        self._window = window
        self._ready_script = collections.deque(ready_script)

    def append(self, stream: int, step: Step) -> None:
        """Adds a copy of one row. Raises ReplayError when a field's shape or dtype differs from the first
        row that this writer was given."""
        row = Step(*(np.array(field) for field in step))
        example = next((rows[0] for rows in self.rows if rows), row)
        for name, got, wanted in zip(Step._fields, row, example, strict=True):
            if got.shape != wanted.shape or got.dtype != wanted.dtype:
                raise ReplayError(f"{name}: {got.dtype}{got.shape} among {wanted.dtype}{wanted.shape}")
        self.rows[stream].append(row)

    def append_each(self, streams: Sequence[int], steps: Step) -> None:
        for stream, *row in zip(streams, *steps, strict=True):
            self.append(stream, Step(*row))

    def insert(self, stream: int, priority: float, state: np.ndarray = NO_STATE) -> None:
        """Keeps the last W rows. Raises ReplayError when the stream has fewer since it was cut, or when the
        priority is negative or not finite."""
        since = self.cuts[stream][-1] if self.cuts[stream] else 0
        available = len(self.rows[stream]) - since
        if available < self._window:
            raise ReplayError(f"an item of {self._window} rows, but stream {stream} has {available}")
        if not np.isfinite(priority) or priority < 0:
            raise ReplayError(f"priority {priority}")
        steps = Step(*(np.stack(field) for field in zip(*self.rows[stream][-self._window :], strict=True)))
        self.items.append(RecordedItem(stream, float(priority), steps, state.copy()))
        self.inserted_items += 1

    def end_episode(self, stream: int) -> None:
        self.cuts[stream].append(len(self.rows[stream]))

    def ready(self, timeout_s: float) -> bool:
        self.ready_calls.append(timeout_s)
        return self._ready_script.popleft() if self._ready_script else True

    def close(self) -> None:
        self.closed = True
