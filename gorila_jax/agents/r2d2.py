"""R2D2 (Kapturowski et al. 2019): Ape-X with an LSTM, learned from stored sequences."""

from __future__ import annotations

from gorila_jax.agents import apex, dqn, drqn
from gorila_jax.agents.dqn import OURS
from gorila_jax.agents.recipe import Preset, Setting
from gorila_jax.config import Config


def validate(config: Config) -> None:
    """One learner, which all actors feed."""
    apex.check_one_learner(config)
    drqn.check_core(config)


KAPTUROWSKI = "Kapturowski et al. 2019"
UNVERIFIED = KAPTUROWSKI + " (unverified)"

ALGORITHM: Preset = {
    **apex.ALGORITHM,
    "env.discount": Setting(0.997, KAPTUROWSKI),
    "env.life_loss_is_end": Setting(False, KAPTUROWSKI),
    "network.core": Setting("lstm", KAPTUROWSKI),
    "network.last_action_and_reward": Setting(True, KAPTUROWSKI),
    "replay.priority_exponent": Setting(0.9, KAPTUROWSKI),
    "sequence.start_state": Setting("stored", KAPTUROWSKI),
    "sequence.priority_eta": Setting(0.9, KAPTUROWSKI),
    "learner.n_steps": Setting(5, KAPTUROWSKI),
    "learner.importance_exponent": Setting(0.6, KAPTUROWSKI),
    "learner.max_abs_reward": Setting(0.0, KAPTUROWSKI + ": the rescaling is in place of clipping"),
    "learner.rescaling_epsilon": Setting(1e-3, KAPTUROWSKI),
}

PAPER: Preset = {
    **ALGORITHM,
    "env.num_environments": Setting(1, KAPTUROWSKI),
    "network.core_units": Setting(512, KAPTUROWSKI),
    "actor.num_actors": Setting(256, KAPTUROWSKI),
    "actor.parameter_period_steps": Setting(400, KAPTUROWSKI),
    "replay.capacity_steps": Setting(4_000_000, KAPTUROWSKI + ": 100 000 sequences"),
    "replay.learning_starts_steps": Setting(200_000, "ours: the paper gives none; 5 000 sequences"),
    "replay.samples_per_insert": Setting(1.18, KAPTUROWSKI + ": what its totals come to"),
    "sequence.length_steps": Setting(80, KAPTUROWSKI),
    "sequence.overlap_steps": Setting(40, KAPTUROWSKI),
    "sequence.burn_in_steps": Setting(40, KAPTUROWSKI),
    "learner.batch_size": Setting(64, KAPTUROWSKI),
    "learner.prefetch_batches": Setting(4, OURS),
    "parameter_server.optimizer": Setting("adam", KAPTUROWSKI),
    "parameter_server.learning_rate": Setting(1e-4, KAPTUROWSKI),
    "parameter_server.optimizer_options": Setting((("eps", 1e-3),), KAPTUROWSKI),
    "parameter_server.target_period_updates": Setting(2_500, KAPTUROWSKI),
    "run.total_frames": Setting(37_500_000_000, KAPTUROWSKI),
}

SMALL: Preset = {
    **apex.SMALL,
    **ALGORITHM,
    "env.discount": Setting(0.99, OURS + ": short sequences"),
    "network.core_units": Setting(96, OURS),
    "sequence.length_steps": Setting(20, OURS),
    "sequence.overlap_steps": Setting(0, OURS + ": half as many states to store"),
    "sequence.burn_in_steps": Setting(10, OURS),
    "learner.batch_size": Setting(4, OURS + ": 80 steps"),
    "parameter_server.learning_rate": Setting(1e-3, OURS),
    "parameter_server.learning_rate_decay_updates": Setting(0, OURS + ": a decay was not tried here"),
    "parameter_server.target_period_updates": Setting(200, OURS),
}

TOY: Preset = {
    **dqn.TOY,
    **ALGORITHM,
    "env.frame_stack": Setting(1, OURS + ": the core remembers"),
    "env.discount": Setting(0.99, OURS + ": short episodes"),
    "env.num_environments": Setting(16, OURS),
    "network.core_units": Setting(64, OURS),
    "sequence.length_steps": Setting(20, OURS + ": a gradient reaches what was seen so long ago"),
    "sequence.overlap_steps": Setting(10, OURS),
    "sequence.burn_in_steps": Setting(10, OURS),
    "learner.n_steps": Setting(3, OURS),
    "learner.batch_size": Setting(16, OURS),
    "parameter_server.learning_rate": Setting(1e-3, OURS),
}

recipe = drqn.recipe._replace(
    name="r2d2",
    validate=validate,
    exploration=apex.fixed_ladder,
    presets={"paper": PAPER, "small": SMALL, "toy": TOY},
)
