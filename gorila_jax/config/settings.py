"""Everything that can be set. Frozen, with the unit in the name.

One environment *step* is `env.frame_skip` *frames*; an *update* is one gradient applied by the parameter
server; an *item* of replay is one transition, which begins at one step, or one sequence of several.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MANY = 100_000  # of parts that each cost memory and threads: more is a slip of the keyboard


def setting(
    default: Any,
    meaning: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with the sentence that `--helpfull` shows for it, the closed range it must lie in, or the words
    that it must be one of."""
    metadata = {"help": meaning, "minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environments of one actor. The fields from `frame_skip` on are Atari's and refused elsewhere."""

    num_environments: int = setting(16, "environments per actor, stepped together", 1, MANY)
    num_threads: int = setting(0, "threads of each actor's environment pool; 0: measured at the start", 0)
    discount: float = setting(0.99, "gamma, per step", 0, 1)
    frame_stack: int = setting(4, "observations the network sees at once; the learner rebuilds the stack", 1)
    max_steps_per_episode: int = setting(0, "not Atari: time limit in steps; 0: the environment's own", 0)
    observation_keys: tuple[str, ...] = setting(
        (), "EnvPool's environments that observe several named arrays: those to be laid side by side"
    )
    gymnasium_workers: str = setting(
        "serial",
        "your own environments: serial, one after the other; threads, where a step mostly waits; processes, "
        "where it computes (one for each)",
        choices=("serial", "threads", "processes"),
    )
    frame_skip: int = setting(4, "Atari: frames per step, the last two of which are max-pooled", 1)
    noop_max: int = setting(30, "Atari: up to this many no-op frames begin a game", 1)  # EnvPool plays one
    sticky_action_probability: float = setting(
        0.0, "Atari: chance that a frame repeats the last action", 0, 1
    )
    full_action_set: bool = setting(False, "Atari: all 18 actions instead of the game's own")
    life_loss_is_end: bool = setting(
        True, "Atari: a lost life ends an episode in training, never in evaluation"
    )
    max_frames_per_episode: int = setting(108_000, "Atari: time limit of a game in frames", 1)
    flicker_probability: float = setting(
        0.0, "Atari: chance that an observation is blank, in training and in evaluation", 0, 1
    )


@dataclass(frozen=True)
class NetworkConfig:
    torso: str = setting(
        "auto",
        "nature (convolutions), flat, or auto: nature for images of 36x36 and more",
        choices=("auto", "nature", "flat"),
    )
    filters: tuple[int, ...] = setting(
        (32, 64, 64), "of nature's convolutions 8x8/4, 4x4/2, 3x3/1; two or three", 1
    )
    centered_images: bool = setting(
        False, "nature: each image less its mean before the convolutions, so that fewer of few filters die"
    )
    hidden_units: tuple[int, ...] = setting((512,), "dense layers between torso and head", 1)
    dueling: bool = setting(False, "two heads, for the state's value and the actions' advantages")
    core: str = setting(
        "none", "recurrent core after the torso, for r2d2 and drqn: none or lstm", choices=("none", "lstm")
    )
    core_units: int = setting(512, "of the recurrent core", 1)
    last_action_and_reward: bool = setting(
        False, "r2d2, drqn: the network also sees the last action and its reward"
    )


@dataclass(frozen=True)
class ActorConfig:
    num_actors: int = setting(1, "actors, each with its own batch of environments", 1, MANY)
    parameter_period_steps: int = setting(100, "steps of an actor between two pulls of fresh parameters", 1)
    epsilon_initial: float = setting(1.0, "dqn, drqn, gorila: epsilon at the start", 0, 1)
    epsilon_final: float = setting(0.1, "dqn, drqn, gorila: epsilon after the decay", 0, 1)
    epsilon_decay_steps: int = setting(250_000, "dqn, drqn: environment steps over which epsilon falls", 1)
    epsilon_decay_updates: int = setting(1_000_000, "gorila: updates over which epsilon falls", 1)
    epsilon_base: float = setting(
        0.4, "apex, r2d2: the largest epsilon of the ladder over all environments", 0, 1
    )
    epsilon_alpha: float = setting(7.0, "apex, r2d2: the smallest is base ** (1 + this)", 0)


@dataclass(frozen=True)
class ReplayConfig:
    backend: str = setting(
        "auto",
        "reverb, memory (in-process), or auto: memory in lockstep or without reverb",
        choices=("auto", "reverb", "memory"),
    )
    layout: str = setting(
        "global",
        "global (one replay for all) or local (one per bundle of actors and learner)",
        choices=("global", "local"),
    )
    num_servers: int = setting(
        1, "servers that share a global replay equally, or that local ones are dealt to", 1, MANY
    )
    capacity_steps: int = setting(
        1_000_000,
        "steps that a global replay keeps, or each local one, as transitions or as sequences; the oldest go "
        "first. Here and below a sequence counts for the steps up to the start of the next one, also where "
        "an episode's end has cut it short",
        1,
    )
    learning_starts_steps: int = setting(
        50_000,
        "steps in a global replay, or in each local one, before it is first sampled; of several servers of a "
        "global one each waits for its share, rounded up",
        1,
    )
    samples_per_insert: float = setting(8.0, "steps trained on per step inserted; 0: not held", 0)
    error_buffer_samples: int = setting(
        0,
        "how far the steps trained on, from a global replay or each local one, may stray from that ratio; 0: "
        "twice the least that is safe",
        0,
    )
    priority_exponent: float = setting(0.0, "alpha of proportional sampling; 0: uniform", 0, 1)
    server_addresses: tuple[str, ...] = setting(
        (), "host:port of running replay servers, in order; none: num_servers of them in this process"
    )
    run_id: str = setting("", "name that servers at given addresses were started with")
    port: int = setting(
        0, "of the first replay server in this process, the next ones follow; 0: any free ones", 0, 65535
    )
    checkpoint: bool = setting(False, "save the replay's contents with every checkpoint")

    @property
    def server_count(self) -> int:
        """Servers of the run: as many as addresses are given, else `num_servers`."""
        return len(self.server_addresses) or self.num_servers


@dataclass(frozen=True)
class SequenceConfig:
    """How r2d2 and drqn cut episodes into replay items. The other agents learn from transitions: one step."""

    length_steps: int = setting(1, "trained steps of a sequence", 1)
    overlap_steps: int = setting(
        0,
        "of those that the next sequence has too; fewer than length_steps; -1: one fewer, so that sequences "
        "begin at every step",
        -1,
    )
    burn_in_steps: int = setting(
        0, "steps before the trained ones that only bring the recurrent state up to date", 0
    )
    start_state: str = setting(
        "stored",
        "recurrent state that a sequence is unrolled from: stored (the actor's) or zero (the network's own "
        "initial one)",
        choices=("stored", "zero"),
    )
    priority_eta: float = setting(
        0.9, "priority of a sequence: this x largest + the rest x mean of its abs TD errors", 0, 1
    )

    @property
    def stride_steps(self) -> int:
        """From the start of a sequence to that of the next one of the same episode."""
        return 1 if self.overlap_steps < 0 else self.length_steps - self.overlap_steps


@dataclass(frozen=True)
class LearnerConfig:
    num_learners: int = setting(1, "learners that push gradients independently", 1, MANY)
    batch_size: int = setting(32, "transitions or sequences per update, over all devices of a learner", 1)
    n_steps: int = setting(1, "steps of reward before the bootstrap", 1)
    double_q: bool = setting(False, "the online network chooses the action that the target network values")
    importance_exponent: float = setting(
        0.0, "beta: how far weights undo proportional sampling; 0: not at all", 0, 1
    )
    max_abs_reward: float = setting(1.0, "rewards are clipped to this in the loss; 0: not clipped", 0)
    rescaling_epsilon: float = setting(
        0.0, "of the value rescaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x; 0: values as they are", 0
    )
    max_abs_td_error: float = setting(1.0, "where the squared loss turns linear (Huber); 0: nowhere", 0)
    max_gradient_norm: float = setting(0.0, "clip of the gradient's global norm; 0: not clipped", 0)
    outlier_deviations: float = setting(0.0, "drop gradients of losses above mean + this x std; 0: none", 0)
    outlier_warmup_losses: int = setting(1_000, "losses seen before any is called an outlier", 1)
    max_nonfinite_updates: int = setting(100, "non-finite updates in a row that end the run", 1)
    prefetch_batches: int = setting(1, "batches made ready ahead of their update; unused in lockstep", 0)


@dataclass(frozen=True)
class ParameterServerConfig:
    num_shards: int = setting(1, "slices of the parameters, each with its own optimizer state and version", 1)
    optimizer: str = setting("adam", "an optax optimizer by name")
    learning_rate: float = setting(1e-4, "learning rate", 0)
    learning_rate_decay_updates: int = setting(
        0, "updates in which the learning rate falls in a straight line; 0: it stays as it is", 0, 2**31 - 1
    )
    learning_rate_final_share: float = setting(
        0.1, "what is left of the learning rate after its decay: 0 to 1 of it", 0, 1
    )
    optimizer_options: tuple[tuple[str, Any], ...] = setting((), "its other arguments: name=value,name=value")
    max_staleness_updates: int = setting(
        0, "gradients of parameters older than this are refused; 0: never", 0
    )
    target_period_updates: int = setting(1_000, "updates between two copies into the target network", 1)


@dataclass(frozen=True)
class CheckpointConfig:
    period_seconds: float = setting(120.0, "seconds between two checkpoints", 0)
    keep: int = setting(3, "newest checkpoints that are kept", 1)


@dataclass(frozen=True)
class RunConfig:
    total_frames: int = setting(20_000_000, "frames of all actors together after which the run ends", 1)
    seed: int = setting(0, "seed of parameters, exploration, replay and environments", 0, 2**31 - 1)
    lockstep: bool = setting(False, "one thread, fixed order, in-process replay: same seed, same bits")
    host_devices: int = setting(0, "virtual CPU devices; 0: the devices there are", 0, 1024)
    platform: str = setting(
        "", "cpu, gpu or tpu: refuse any other; empty: what jax finds", choices=("", "cpu", "gpu", "tpu")
    )
    xla_threads: int = setting(0, "threads that jax computes with on the CPU; 0: one per core", 0)
    feeder_niceness: int = setting(
        10,
        "nice value of the threads that act and write priorities: learners go first; those that sample run "
        "only where a core has nothing else to do; 20: all of them do, for a machine of one's own; 0: all "
        "are alike",
        0,
        20,
    )
    init_from: str = setting("", "workdir of another run whose newest parameters this one starts from")
    log_period_seconds: float = setting(5.0, "seconds between two rows of metrics", 0)


@dataclass(frozen=True)
class Config:
    """One run. `agent` and `environment` are names, or `module:attribute` for your own."""

    agent: str = setting("gorila", "dqn, gorila, apex, drqn, r2d2, or module:recipe")
    environment: str = setting("Pong-v5", "an EnvPool name, or module:factory of a Gymnasium environment")
    preset: str = setting("", "the agent's preset that the other values started from")
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    parameter_server: ParameterServerConfig = field(default_factory=ParameterServerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)


class Field(typing.NamedTuple):
    path: str  # section.field, or the bare name of a top-level one
    type: Any
    default: Any
    meaning: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]  # none: any value of the type


def fields() -> dict[str, Field]:
    """Every leaf of `Config` by its dotted path."""

    def walk(section: type, prefix: str) -> Iterator[Field]:
        hints = typing.get_type_hints(section)
        for leaf in dataclasses.fields(section):
            if dataclasses.is_dataclass(hints[leaf.name]):
                yield from walk(hints[leaf.name], prefix + leaf.name + ".")
            else:
                yield Field(
                    prefix + leaf.name,
                    hints[leaf.name],
                    leaf.default,
                    leaf.metadata["help"],
                    leaf.metadata["minimum"],
                    leaf.metadata["maximum"],
                    leaf.metadata["choices"],
                )

    return {leaf.path: leaf for leaf in walk(Config, "")}


def get(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
