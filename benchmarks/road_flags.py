"""Flags that several benchmarks of the road have in common. What is not given, each of them chooses."""

from __future__ import annotations

from absl import flags

from gorila_jax.config import RunConfig, fields

AGENT = flags.DEFINE_string("agent", None, "dqn, gorila, apex, drqn, r2d2, or your_module:recipe")
ENVIRONMENT = flags.DEFINE_string("environment", "Pong-v5", "an EnvPool name")
PRESET = flags.DEFINE_enum("preset", None, ["paper", "small", "toy"], "of the agent")
NUM_ENVIRONMENTS = flags.DEFINE_integer("num_environments", None, "of one actor", 1)
REPLAY_BACKEND = flags.DEFINE_enum("replay_backend", "auto", ["auto", "reverb", "memory"], "to go through")
FEEDER_NICENESS = flags.DEFINE_integer(
    "feeder_niceness", RunConfig().feeder_niceness, fields()["run.feeder_niceness"].meaning, 0, 20
)
