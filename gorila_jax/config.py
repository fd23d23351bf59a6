"""Everything that can be set. Frozen, with the unit in the name, checked before anything starts.

One environment *step* is `environment.frame_skip` *frames*; an *update* is one gradient applied by the
parameter server; an *item* is one transition in replay.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gorila_jax.types import ConfigError


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environments of one actor. What is marked Atari is ignored by nothing: elsewhere it is refused."""

    num_environments: int = 16  # per actor, stepped together
    num_threads: int = 0  # of the environment pool, per actor; 0: as many as cores, at most num_environments
    discount: float = 0.99  # gamma
    frame_stack: int = 4  # observations that the network sees at once, the stack is rebuilt by the learner
    max_steps_per_episode: int = 0  # not Atari: time limit in steps; 0: the environment's own
    gymnasium_workers: str = "serial"  # your own environment: "serial", or "processes" for one process each
    # Atari:
    frame_skip: int = 4  # frames per step, the last two of which are max-pooled
    noop_max: int = 30  # up to this many no-ops at the start of a game
    sticky_action_probability: float = 0.0
    full_action_set: bool = False  # all 18 actions instead of the game's own
    life_loss_is_end: bool = True  # in training; evaluation always plays whole games
    max_frames_per_episode: int = 108_000


@dataclass(frozen=True)
class NetworkConfig:
    torso: str = "auto"  # "nature" (convolutions), "flat", or "auto": nature for images of 36 x 36 and more
    filters: tuple[int, ...] = (32, 64, 64)  # of the convolutions 8x8/4, 4x4/2, 3x3/1; two or three of them
    hidden_units: tuple[int, ...] = (512,)  # dense layers between torso and head


@dataclass(frozen=True)
class ActorConfig:
    num_actors: int = 1
    parameter_period_steps: int = 100  # steps of one environment between two pulls of fresh parameters
    epsilon_initial: float = 1.0
    epsilon_final: float = 0.1
    epsilon_decay: int = 250_000  # DQN: in steps of all environments; Gorila: in updates


@dataclass(frozen=True)
class ReplayConfig:
    backend: str = "auto"  # "reverb", "memory", or "auto": memory in lockstep or where reverb is missing
    layout: str = "global"  # one table for all, or "local": one per bundle of actors and a learner
    capacity_transitions: int = 1_000_000  # per table
    learning_starts_transitions: int = 50_000  # per table, before the first sample
    samples_per_insert: float = 8.0  # transitions trained on per transition inserted; 0: free
    error_buffer_samples: int = 0  # how far samples may run from that ratio; 0: the least that cannot deadlock
    server_addresses: tuple[str, ...] = ()  # host:port of running servers; none: one is started in this process
    port: int = 0  # of the server started here; 0: any free one
    checkpoint: bool = False  # save the replay with every checkpoint


@dataclass(frozen=True)
class LearnerConfig:
    num_learners: int = 1
    batch_size: int = 32  # transitions per update, over all devices of a learner
    n_steps: int = 1
    max_abs_reward: float = 1.0  # rewards are clipped to this in the loss; 0: not clipped
    max_abs_td_error: float = 1.0  # the squared error turns linear there (Huber); 0: never
    max_gradient_norm: float = 0.0  # global norm over all parameters; 0: not clipped
    outlier_deviations: float = 0.0  # k: gradients of losses above mean + k std are dropped; 0: none
    outlier_warmup_losses: int = 1000
    max_nonfinite_updates: int = 100  # in a row, before the run ends with an error
    prefetch_batches: int = 1  # batches moved to the devices ahead of their update; 0 in lockstep


@dataclass(frozen=True)
class ParameterServerConfig:
    num_shards: int = 1
    optimizer: str = "adam"  # an optax name
    learning_rate: float = 1e-4
    optimizer_options: tuple[tuple[str, Any], ...] = ()  # further arguments of it: name=value,name=value
    max_staleness_updates: int = 0  # gradients older than this are refused; 0: never
    target_period_updates: int = 1_000  # updates between two copies into the target network


@dataclass(frozen=True)
class CheckpointConfig:
    period_seconds: float = 120.0
    keep: int = 3  # the newest ones


@dataclass(frozen=True)
class RunConfig:
    total_frames: int = 0  # of all actors; 0: the preset's
    seed: int = 0
    lockstep: bool = False  # one thread, fixed order, in-process replay: same seed, same bits
    host_devices: int = 0  # virtual CPU devices; 0: the devices there are
    platform: str = ""  # "cpu", "gpu" or "tpu": refuse to run on anything else
    log_period_seconds: float = 5.0


@dataclass(frozen=True)
class Config:
    """One run. `agent` and `environment` are names, or `module:attribute` for your own."""

    agent: str = "gorila"
    environment: str = "Pong-v5"
    preset: str = ""  # the agent's preset that this was built from
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    parameter_server: ParameterServerConfig = field(default_factory=ParameterServerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)
