"""Ape-X (Horgan et al. 2018): one learner, many actors, prioritized replay; n-step double dueling DQN."""

from __future__ import annotations

from gorila_jax.agents import dqn
from gorila_jax.agents.dqn import NATURE, OURS
from gorila_jax.agents.recipe import Elapsed, ExplorationFn, Preset, Setting, check_unread
from gorila_jax.config import Config
from gorila_jax.rl.exploration import ladder
from gorila_jax.types import ConfigError

HORGAN = "Horgan et al. 2018"
UNVERIFIED = HORGAN + " (unverified)"


def fixed_ladder(config: Config) -> ExplorationFn:
    """Each environment of all actors keeps an epsilon of its own (Ape-X, section 4.1)."""
    falling = ("epsilon_initial", "epsilon_final", "epsilon_decay_steps", "epsilon_decay_updates")
    check_unread(
        config,
        (f"actor.{name}" for name in falling),
        "gives every environment an epsilon of its own: actor.epsilon_base, epsilon_alpha",
    )
    actor = config.actor

    def epsilon(elapsed: Elapsed, environment: int, num_environments: int) -> float:
        return ladder(environment, num_environments, actor.epsilon_base, actor.epsilon_alpha)

    return epsilon


def validate(config: Config) -> None:
    """One learner, which all actors feed, from transitions."""
    dqn.check_memoryless(config)
    check_one_learner(config)


def check_one_learner(config: Config) -> None:
    """Raises ConfigError unless there is one learner, with one replay that all actors feed."""
    if config.learner.num_learners != 1:
        raise ConfigError(
            f"learner.num_learners is {config.learner.num_learners}, but {config.agent} has one, on as "
            "many devices as there are; --agent=gorila takes any number"
        )
    if config.replay.layout != "global":
        raise ConfigError(
            f"replay.layout is {config.replay.layout}, but {config.agent} has one replay for all: global"
        )


ALGORITHM: Preset = {
    "network.dueling": Setting(True, HORGAN),
    "replay.priority_exponent": Setting(0.6, HORGAN),
    "learner.double_q": Setting(True, HORGAN),
    "learner.n_steps": Setting(3, HORGAN),
    "learner.importance_exponent": Setting(0.4, HORGAN),
    "learner.max_abs_td_error": Setting(0.0, HORGAN + ": half the squared error"),
    "learner.max_gradient_norm": Setting(40.0, HORGAN),
    "actor.epsilon_base": Setting(0.4, HORGAN),
    "actor.epsilon_alpha": Setting(7.0, HORGAN),
}

PAPER: Preset = {
    **ALGORITHM,
    "env.num_environments": Setting(1, HORGAN),
    "actor.num_actors": Setting(360, HORGAN),
    "actor.parameter_period_steps": Setting(100, UNVERIFIED + ": 400 frames"),
    "replay.capacity_steps": Setting(2_000_000, HORGAN),
    "replay.learning_starts_steps": Setting(50_000, HORGAN),
    "replay.samples_per_insert": Setting(0.78, HORGAN + ": what 9.7 K/s learned of 12.5 K/s come to"),
    "learner.batch_size": Setting(512, HORGAN),
    "learner.max_abs_reward": Setting(1.0, HORGAN),
    "learner.prefetch_batches": Setting(16, HORGAN),
    "parameter_server.optimizer": Setting("rmsprop", HORGAN),
    "parameter_server.learning_rate": Setting(0.00025 / 4, HORGAN),
    "parameter_server.optimizer_options": Setting(
        (("decay", 0.95), ("eps", 1.5e-7), ("centered", True)), HORGAN
    ),
    "parameter_server.target_period_updates": Setting(2_500, HORGAN),
    "run.total_frames": Setting(22_800_000_000, UNVERIFIED),
}

SMALL: Preset = {
    **ALGORITHM,
    "env.num_environments": Setting(32, OURS),
    "network.filters": Setting((8, 16), OURS + ": at 60% of the cost of twice the width"),
    "network.centered_images": Setting(True, OURS + ": of so few filters too many would die"),
    "network.hidden_units": Setting((128,), OURS + ": of each of the two heads"),
    "actor.parameter_period_steps": Setting(10, OURS),
    "replay.capacity_steps": Setting(200_000, OURS),
    "replay.learning_starts_steps": Setting(2_000, OURS),
    "replay.samples_per_insert": Setting(4.0, OURS),
    "learner.batch_size": Setting(32, NATURE),
    "learner.n_steps": Setting(5, OURS),
    "learner.max_abs_reward": Setting(1.0, NATURE),
    "learner.prefetch_batches": Setting(4, OURS + ": in store while acting has the cores"),
    "parameter_server.optimizer": Setting("adam", OURS),
    "parameter_server.learning_rate": Setting(5e-4, OURS),
    "parameter_server.learning_rate_decay_updates": Setting(64_000, OURS + ": 2 M frames"),
    "parameter_server.learning_rate_final_share": Setting(0.2, OURS + ": near the best, scores swing less"),
    "parameter_server.target_period_updates": Setting(400, OURS),
    "run.total_frames": Setting(10_000_000, OURS),
}

TOY: Preset = {
    **dqn.TOY,
    **ALGORITHM,
    "env.num_environments": Setting(16, OURS),
    "parameter_server.learning_rate": Setting(1e-3, OURS),
}

recipe = dqn.recipe._replace(
    name="apex",
    validate=validate,
    exploration=fixed_ladder,
    presets={"paper": PAPER, "small": SMALL, "toy": TOY},
)
