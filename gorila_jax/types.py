"""The records that travel the road, and the ports between its workers.

One *step* of an environment is one action taken; on Atari it is four *frames*. Axes are named
`E` (environments of one actor), `B` (items of a batch), `W` (steps of one item's window), `T` (steps of
an unroll), `S` (frames of one stack), `A` (actions), `K` (numbers of a recurrent state) and `D` (devices of
one learner).

A worker never knows whether the thing behind a port is a list in a test, an object in this process
or a server elsewhere. No port call waits longer than the `timeout_s` it was given.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Parameters = Any
"""A pytree of arrays: what a network's `init` returned."""

STORED_STATE = np.dtype(np.float16)
"""What a recurrent state is stored as: half the bytes of float32, since it does not compress as frames do.
Networks compute with float32."""

NO_STATE = np.zeros(0, STORED_STATE)
"""The recurrent state of a network that remembers nothing."""


class GorilaError(Exception):
    """A fault of a run that its user has to know about; the message says what and what to do."""


class ConfigError(GorilaError):
    """A setting that cannot work. The message names it, its value and what would be right."""


class ReplayError(GorilaError):
    """The replay is gone, emptied, of another run, or was fed something that does not fit."""


class RunError(GorilaError):
    """A part of a run failed while it ran; the cause is that part's own exception."""


class End(enum.IntEnum):
    """Why an episode ended at a step. At most one holds; a game over wins over a time limit."""

    NONE = 0
    GAME_OVER = 1  # the environment terminated: nothing follows, no bootstrap
    TIME_LIMIT = 2  # the environment was truncated: the value of what follows still counts
    LIFE_LOSS = 3  # a life was lost and training treats that as an end: no bootstrap


class EnvironmentSpec(NamedTuple):
    """What everyone after the environment has to know about it."""

    name: str
    observation_shape: tuple[int, ...]  # of one observation, unstacked: (84, 84) on Atari
    observation_dtype: np.dtype
    num_actions: int
    frames_per_step: int  # 4 on Atari, 1 elsewhere
    settings: Mapping[str, Any]  # the protocol, read back from the environment; JSON values only


class EnvironmentStep(NamedTuple):
    """What a batch of environments said after one action each, or after a reset."""

    observation: np.ndarray  # [E, *observation_shape]
    reward: np.ndarray  # [E] float32, raw: never clipped
    discount: np.ndarray  # [E] float32, gamma, or 0 where the episode ended for good
    end: np.ndarray  # [E] uint8, an `End`
    first: np.ndarray  # [E] bool: first observation of an episode. The action was ignored, the
    #                    reward means nothing, and the step is not counted.


class Environment(Protocol):
    """A batch of E environments that reset themselves in the step *after* an end.

    A step has two halves, so that whoever takes it can do other work while the environments run. Nothing
    but `recv` and `close` may be called between them.
    """

    spec: EnvironmentSpec
    num_environments: int

    def reset(self) -> EnvironmentStep:
        """Starts every environment anew; `first` is true everywhere.

        Raises:
          GorilaError: a step is under way.
        """

    def send(self, actions: np.ndarray) -> None:
        """Starts a step with `actions` [E] int32, and does not wait for its end where the environments run on
        threads or processes of their own. After an end the next step ignores that environment's action.

        Raises:
          ValueError: an action that there is not, or not one per environment.
          GorilaError: before the first reset, or with a step under way.
        """

    def recv(self) -> EnvironmentStep:
        """Waits for the step that `send` started.

        Raises:
          GorilaError: no step is under way, or an environment broke its own rules.
        """

    def step(self, actions: np.ndarray) -> EnvironmentStep:
        """Both halves of a step at once."""
        self.send(actions)
        return self.recv()

    def close(self) -> None:
        """Frees what the environments hold, with a step under way too. May be called again."""


class Episode(NamedTuple):
    """A whole finished game, whatever training took for an end."""

    actor: int
    environment: int  # of that actor
    episode_return: float  # undiscounted sum of raw rewards, over all lives: the score
    steps: int
    epsilon: float  # exploration rate of that environment at the end
    training_return: float | None = None  # the same sum after clipping; None: not known


class Step(NamedTuple):
    """One row of a stream in replay: an observation and the action that led to it.

    The first row of an episode, and rows that only pad a window, have `valid` false, action 0,
    reward 0 and discount 1. In an item every field has a leading axis [W], in a batch [B, W].
    """

    observation: Any  # [*observation_shape]
    action: Any  # int32
    reward: Any  # float32, raw
    discount: Any  # float32, gamma or 0
    valid: Any  # bool: the action was really taken


class SampleInfo(NamedTuple):
    """What replay says about the items of a batch."""

    keys: np.ndarray  # [B], identify an item for a priority update; their dtype is replay's own business
    probabilities: np.ndarray  # [B] float64, of having been drawn: priority ** alpha / sum, over all tables
    table_sizes: np.ndarray  # [B] int64, items in all tables of the sampler when it was drawn


class Batch(NamedTuple):
    steps: Step  # [B, W, ...]
    state: np.ndarray  # [B, K] float16, stored with the items: see `ReplayWriter.insert`
    info: SampleInfo  # [B]


class ReplayWriter(Protocol):
    """An actor's end of replay: E independent streams of steps, and items cut from their tails."""

    inserted_items: int  # items that this writer has handed to the replay so far

    def append(self, stream: int, step: Step) -> None:
        """Adds one row (copied) to stream `stream`. Raises ReplayError naming a field that does not fit."""

    def append_each(self, streams: Sequence[int], steps: Step) -> None:
        """Adds a row to each of N streams: `append` of every row of `steps` [N, ...], in fewer calls."""

    def insert(self, stream: int, priority: float, state: np.ndarray = NO_STATE) -> None:
        """Makes an item of the last W rows of the stream. Never blocks for long: see `ready`.

        Args:
          stream: whose rows.
          priority: of the item.
          state: [K] float16, that the actor's network had before the first observation that it is unrolled
            over; of K = 0 values where nothing is remembered, or where it need not be.

        Raises:
          ReplayError: the stream has fewer rows since its episode began, or the state has another size.
          ValueError: the priority is negative or not finite.
        """

    def end_episode(self, stream: int) -> None:
        """Cuts the stream: no later item can reach a row appended before this call."""

    def ready(self, timeout_s: float) -> bool:
        """Whether replay wants more; False when its rate limiter held us back for the whole timeout."""

    def close(self) -> None:
        """Hands over what is still pending, or gives up within a few seconds."""


class Sampler(Protocol):
    """A learner's end of replay."""

    def sample(self, timeout_s: float) -> Batch | None:
        """The next batch, or None when the limiter gave none in time. Raises ReplayError if replay died."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Sets new priorities [N] of the items with `keys` [N], the last one of equals.

        Returns:
          How many keys were no longer there, which is no error.

        Raises:
          ValueError: a priority is negative or not finite; none is changed then.
          ReplayError: replay died.
        """

    def close(self) -> None: ...


class TableStatus(NamedTuple):
    """Enough to say who waits for what."""

    size_items: int
    capacity_items: int
    min_items: int  # before the first sample
    inserted_items: int
    sampled_items: int  # by the replay's own count: prefetch included
    can_insert: bool
    can_sample: bool


class Replay(Protocol):
    """All tables of a run: one per server for a global replay, one per bundle for local ones."""

    num_tables: int

    def writer(self, table: int, num_streams: int) -> ReplayWriter:
        """For one actor, with a stream for each of its environments."""

    def sampler(self, table: int, batch_size: int) -> Sampler:
        """For one learner: batches of `batch_size` items, drawn with replacement."""

    def status(self, table: int) -> TableStatus:
        """As of now. Raises ReplayError if replay died."""

    def save(self, directory: str) -> None:
        """Writes every item and priority below `directory` (absent before), or raises ReplayError."""

    def restore(self, directory: str) -> None:
        """Brings back what `save` wrote; raises ReplayError when the settings or the signature differ."""

    def close(self) -> None: ...


class Snapshot(NamedTuple):
    """Parameters as a learner pulls them: replicated over its devices, leading axis [D]."""

    version: Any  # int32 device scalar [D], or one int per shard: goes back unread with the gradient
    parameters: Parameters
    target_parameters: Parameters


class Gradient(NamedTuple):
    """What a learner pushes. The flags are device scalars, so that nobody waits for them."""

    version: Any  # the snapshot's, untouched
    gradients: Parameters  # averaged over the global batch, equal on all devices, leading axis [D]
    finite: Any  # [D] bool: loss and gradients were finite
    outlier: Any  # [D] bool: the learner's outlier guard refuses it


class ServerStatus(NamedTuple):
    """The parameter server's counters, in gradients (one per learner update, whatever S is)."""

    version: int  # updates applied; with S shards the least advanced one's
    target_version: int
    accepted: int
    stale: int
    outlier: int
    nonfinite: int
    staleness_histogram: tuple[int, ...]  # accepted gradients by age in updates; the last bin is "or more"


class ParameterServer(Protocol):
    """Owns parameters, optimizer state, target network and version. Safe to call from many threads."""

    def pull(self, learner: int) -> Snapshot:
        """The current parameters and target on the devices of learner `learner`."""

    def pull_policy(self) -> tuple[int, Parameters]:
        """(version, parameters) on one device, no leading axis: for actors. Later pushes leave them be."""

    def push(self, learner: int, gradient: Gradient) -> None:
        """Applies the gradient, or refuses and counts it: stale, outlier or non-finite."""

    def status(self) -> ServerStatus: ...

    def state(self) -> Any:
        """Parameters, target, optimizer state and counters as one pytree of host arrays: for a checkpoint."""

    def restore(self, state: Any) -> None:
        """Takes back what `state` gave; raises ConfigError when shapes differ."""


class Inputs(NamedTuple):
    """What a network sees of B environments at one step; unrolled over T steps, [T, B, ...]."""

    stack: Any  # [B, S, *observation_shape]
    last_action: Any  # [B] int32, that led to the newest observation; means nothing where `first`
    last_reward: Any  # [B] float32, raw, of that action
    first: Any  # [B] bool: an episode begins, so nothing before it is remembered


class Network(NamedTuple):
    """Pure functions. A recurrent state is one array [B, K] float32; K is 0 without memory.

    Where `first` holds, `step` and `unroll` take the initial state in place of what they were given.
    """

    init: Callable[[Any], Parameters]  # of a JAX key
    initial_state: Callable[[Parameters, int], Any]  # of B environments
    # Both give Q values, [B, A] and [T, B, A] float32, and the state after the last step, [B, K] float32.
    step: Callable[[Parameters, Inputs, Any], tuple[Any, Any]]
    unroll: Callable[[Parameters, Inputs, Any], tuple[Any, Any]]

    def apply(self, parameters: Parameters, stacks: Any) -> Any:
        """Q values [B, A] float32 of stacks [B, S, *observation_shape] that each begin an episode.

        To a network without memory, that sees no last action, every stack is the same wherever it lies.
        """
        size = stacks.shape[0]
        nothing = Inputs(stacks, np.zeros(size, np.int32), np.zeros(size, np.float32), np.ones(size, bool))
        return self.step(parameters, nothing, self.initial_state(parameters, size))[0]


class LossOutput(NamedTuple):
    """Per item, so that weighting and averaging happen in one place: the learner."""

    losses: Any  # [B] float32
    abs_td_errors: Any  # [B] float32, unweighted; of a sequence the mean over its steps
    priorities: Any  # [B] float32
