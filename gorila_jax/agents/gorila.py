"""Gorila (Nair et al. 2015): DQN with many actors, many learners and a sharded parameter server."""

from __future__ import annotations

from gorila_jax.agents import dqn
from gorila_jax.agents.dqn import NATURE, OURS
from gorila_jax.agents.recipe import Elapsed, ExplorationFn, Preset, Setting, check_unread
from gorila_jax.config import Config
from gorila_jax.rl.exploration import linear_schedule

NAIR = "Nair et al. 2015"
UNVERIFIED = NAIR + " (unverified)"


def annealed_over_updates(config: Config) -> ExplorationFn:
    """Epsilon falls linearly over the server's updates (section 5), the same in every environment."""
    check_unread(
        config,
        (*dqn.LADDER, "actor.epsilon_decay_steps"),
        "lets epsilon fall over updates: actor.epsilon_initial, epsilon_final, epsilon_decay_updates",
    )
    actor = config.actor

    def epsilon(elapsed: Elapsed, environment: int, num_environments: int) -> float:
        return linear_schedule(
            elapsed.updates, actor.epsilon_initial, actor.epsilon_final, actor.epsilon_decay_updates
        )

    return epsilon


PAPER: Preset = {
    **dqn.PAPER,
    "actor.num_actors": Setting(100, NAIR),
    "actor.epsilon_final": Setting(0.1, NATURE),
    "actor.epsilon_decay_updates": Setting(1_000_000, UNVERIFIED),
    "learner.num_learners": Setting(100, NAIR),
    "learner.outlier_deviations": Setting(5.0, "ours: the paper says several"),
    "replay.layout": Setting("local", NAIR + ": bundles"),
    "replay.capacity_steps": Setting(1_000_000, UNVERIFIED + ": 1 M frames per bundle"),
    "replay.samples_per_insert": Setting(0.0, NAIR + ": actors and learners run free"),
    "parameter_server.num_shards": Setting(30, NAIR + ": about 30 machines"),
    "parameter_server.optimizer": Setting("adagrad", UNVERIFIED),
    "parameter_server.learning_rate": Setting(1e-3, "ours: the paper gives none"),
    "parameter_server.optimizer_options": Setting((), "optax's own"),
    "parameter_server.max_staleness_updates": Setting(
        1_000, "ours: the paper gives none; ten rounds of 100 learners"
    ),
    "parameter_server.target_period_updates": Setting(60_000, UNVERIFIED),
}

SMALL: Preset = {
    **dqn.SMALL,
    "actor.num_actors": Setting(1, OURS),
    "actor.epsilon_final": Setting(0.02, OURS),
    "actor.epsilon_decay_updates": Setting(6_000, OURS),
    "learner.num_learners": Setting(2, OURS),
    "learner.outlier_deviations": Setting(5.0, "ours: the paper says several"),
    "parameter_server.num_shards": Setting(2, OURS),
    "parameter_server.max_staleness_updates": Setting(20, OURS),
}

TOY: Preset = {
    **dqn.TOY,
    "actor.epsilon_final": Setting(0.05, OURS),
    "actor.epsilon_decay_updates": Setting(2_500, OURS),
    "learner.outlier_deviations": Setting(5.0, "ours: the paper says several"),
    "parameter_server.max_staleness_updates": Setting(20, OURS),
}

recipe = dqn.recipe._replace(
    name="gorila",
    validate=dqn.check_memoryless,  # and any number of everything
    exploration=annealed_over_updates,
    presets={"paper": PAPER, "small": SMALL, "toy": TOY},
)
