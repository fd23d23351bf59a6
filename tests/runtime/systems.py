"""Whole systems on Catch, small enough for a test to step through."""

from __future__ import annotations

from typing import Any

from gorila_jax.agents.recipe import Recipe
from gorila_jax.config import Config
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.plan import make_plan
from gorila_jax.runtime.system import System, build_system

SMALL = {
    "env.num_environments": 2,
    "network.hidden_units": (8,),
    "replay.backend": "memory",
    "replay.capacity_steps": 1_000,
    "replay.learning_starts_steps": 32,
    "learner.batch_size": 8,
    "learner.outlier_deviations": 0.0,
    "parameter_server.max_staleness_updates": 0,
    "run.lockstep": True,
}


def config_of(agent: str = "gorila", **overrides: Any) -> Config:
    return make_config(agent, "Catch-v0", overrides=SMALL | overrides)


def build(
    config: Config, recipe: Recipe | None = None, generation: int = 0, coordinator: Coordinator | None = None
) -> System:
    return build_system(
        make_plan(config, recipe),
        coordinator or Coordinator(10**9),
        run_id="test",
        generation=generation,
        initial_parameters=None,
        replay_directory=None,
    )
