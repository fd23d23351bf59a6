"""DQN (Mnih et al. 2015): one actor, one learner, uniform replay. Every later agent starts from here."""

from __future__ import annotations

from typing import Any

from gorila_jax.actor.accumulator import Accumulator, TransitionAccumulator
from gorila_jax.agents.recipe import (
    Elapsed,
    ExplorationFn,
    LossFn,
    Preset,
    Recipe,
    Setting,
    check_unread,
)
from gorila_jax.config import Config, fields
from gorila_jax.networks.build import build_network
from gorila_jax.rl.exploration import linear_schedule
from gorila_jax.rl.priorities import priorities
from gorila_jax.rl.returns import clip_rewards
from gorila_jax.rl.td_errors import double_q_learning, huber_loss, q_learning
from gorila_jax.rl.windows import Layout, transition_layout, transitions
from gorila_jax.types import ConfigError, EnvironmentSpec, LossOutput, Network, Parameters, ReplayWriter, Step


def layout(config: Config) -> Layout:
    """Of n-step transitions."""
    return transition_layout(config.env.frame_stack, config.learner.n_steps)


def accumulator(config: Config, writer: ReplayWriter) -> Accumulator:
    return TransitionAccumulator(
        writer,
        config.env.num_environments,
        config.env.frame_stack,
        config.learner.n_steps,
        config.learner.max_abs_reward,
    )


def network(config: Config, spec: EnvironmentSpec) -> Network:
    return build_network(config.network, spec, config.env.frame_stack)


LADDER = ("actor.epsilon_base", "actor.epsilon_alpha")


def annealed_over_steps(config: Config) -> ExplorationFn:
    """Epsilon falls linearly over environment steps and is the same in every environment."""
    check_unread(
        config,
        (*LADDER, "actor.epsilon_decay_updates"),
        "lets epsilon fall over steps: actor.epsilon_initial, epsilon_final, epsilon_decay_steps",
    )
    actor = config.actor

    def epsilon(elapsed: Elapsed, environment: int, num_environments: int) -> float:
        return linear_schedule(
            elapsed.steps, actor.epsilon_initial, actor.epsilon_final, actor.epsilon_decay_steps
        )

    return epsilon


def loss(config: Config, network: Network) -> LossFn:
    """y = R + discount * max_a Q(s', a; target); Huber loss of y - Q(s, a) (Mnih et al. 2015, methods).

    With `double_q`, a is the one that the online network prefers (van Hasselt et al. 2016, equation 4).
    """
    learner = config.learner

    def q_learning_loss(
        parameters: Parameters, target_parameters: Parameters, steps: Step, state: Any
    ) -> LossOutput:
        steps = steps._replace(reward=clip_rewards(steps.reward, learner.max_abs_reward))
        transition = transitions(steps, config.env.frame_stack)
        q_tm1 = network.apply(parameters, transition.stack_tm1)
        q_t = network.apply(target_parameters, transition.stack_t)
        taken = q_tm1, transition.a_tm1, transition.r_t, transition.discount_t
        if learner.double_q:
            td_errors = double_q_learning(*taken, q_t, network.apply(parameters, transition.stack_t))
        else:
            td_errors = q_learning(*taken, q_t)
        losses = huber_loss(td_errors, learner.max_abs_td_error)
        return LossOutput(losses, abs(td_errors), priorities(td_errors))

    return q_learning_loss


def validate(config: Config) -> None:
    """One actor and one learner, which learns from transitions."""
    check_memoryless(config)
    check_one_of_each(config)


def check_one_of_each(config: Config) -> None:
    """Raises ConfigError unless there is one actor and one learner: more of them is Gorila."""
    for path, value in (
        ("actor.num_actors", config.actor.num_actors),
        ("learner.num_learners", config.learner.num_learners),
        ("parameter_server.num_shards", config.parameter_server.num_shards),
    ):
        if value != 1:
            raise ConfigError(
                f"{path} is {value}, but {config.agent} has one of them; --agent=gorila takes any number"
            )


def check_memoryless(config: Config) -> None:
    """Raises ConfigError for what only agents that learn from sequences can do."""
    only_of_sequences = (
        "network.core",
        "network.core_units",
        "network.last_action_and_reward",
        "learner.rescaling_epsilon",
        *(path for path in fields() if path.startswith("sequence.")),
    )
    check_unread(
        config,
        only_of_sequences,
        "learns from single transitions and remembers nothing: --agent=r2d2 or drqn does",
    )


NATURE = "Mnih et al. 2015"
DQN_ZOO = "Mnih et al. 2015 as dqn_zoo codes it"
OURS = "ours: chosen on two CPU cores"

PAPER: Preset = {
    "env.num_environments": Setting(1, NATURE),
    "replay.capacity_steps": Setting(1_000_000, NATURE),
    "replay.learning_starts_steps": Setting(50_000, NATURE),
    "replay.samples_per_insert": Setting(8.0, NATURE + ": 32 samples every 4 steps"),
    "learner.batch_size": Setting(32, NATURE),
    "learner.max_abs_td_error": Setting(1.0, NATURE),
    "learner.max_abs_reward": Setting(1.0, NATURE),
    "actor.parameter_period_steps": Setting(4, NATURE + ": the actor is never behind by more than an update"),
    "parameter_server.optimizer": Setting("rmsprop", NATURE),
    "parameter_server.learning_rate": Setting(2.5e-4, NATURE),
    "parameter_server.optimizer_options": Setting(
        (("decay", 0.95), ("eps", 0.01 / 32**2), ("centered", True)), DQN_ZOO
    ),
    "parameter_server.target_period_updates": Setting(2_500, DQN_ZOO + ": every 40 000 frames"),
    "run.total_frames": Setting(200_000_000, NATURE),
}

SMALL: Preset = {
    "env.num_environments": Setting(16, OURS),
    "network.filters": Setting((16, 32), OURS),
    "network.hidden_units": Setting((256,), OURS),
    "replay.capacity_steps": Setting(200_000, OURS),
    "replay.learning_starts_steps": Setting(1_000, OURS),
    "replay.samples_per_insert": Setting(4.0, OURS),
    "learner.batch_size": Setting(32, NATURE),
    "learner.n_steps": Setting(
        3, "Hessel et al. 2017, whose ablation found it among the two that matter most"
    ),
    "actor.parameter_period_steps": Setting(10, OURS),
    "parameter_server.optimizer": Setting("adam", OURS),
    "parameter_server.learning_rate": Setting(3e-4, OURS),
    "parameter_server.target_period_updates": Setting(500, OURS),
    "run.total_frames": Setting(10_000_000, OURS),
}

TOY: Preset = {
    "env.num_environments": Setting(8, OURS),
    "env.frame_stack": Setting(1, "the observation is the whole state"),
    "network.hidden_units": Setting((64, 64), OURS),
    "replay.capacity_steps": Setting(50_000, OURS),
    "replay.learning_starts_steps": Setting(500, OURS),
    "replay.samples_per_insert": Setting(8.0, NATURE),
    "learner.max_abs_reward": Setting(0.0, "the rewards of toys are small"),
    "actor.parameter_period_steps": Setting(5, OURS),
    "parameter_server.optimizer": Setting("adam", OURS),
    "parameter_server.learning_rate": Setting(1e-3, OURS),
    "parameter_server.target_period_updates": Setting(200, OURS),
    "run.total_frames": Setting(30_000, OURS),
}

EXPLORATION = {
    "paper": {
        "actor.epsilon_final": Setting(0.1, NATURE),
        "actor.epsilon_decay_steps": Setting(1_000_000, DQN_ZOO + ": 2 % of 200 M frames"),
    },
    "small": {
        "actor.epsilon_final": Setting(0.02, OURS),
        "actor.epsilon_decay_steps": Setting(50_000, OURS),
    },
    "toy": {
        "actor.epsilon_final": Setting(0.05, OURS),
        "actor.epsilon_decay_steps": Setting(10_000, OURS),
    },
}
"""By preset, apart: agents that start from DQN's presets explore in ways of their own."""

recipe = Recipe(
    name="dqn",
    validate=validate,
    layout=layout,
    accumulator=accumulator,
    network=network,
    exploration=annealed_over_steps,
    loss=loss,
    presets={
        name: {**preset, **EXPLORATION[name]}
        for name, preset in (("paper", PAPER), ("small", SMALL), ("toy", TOY))
    },
)
