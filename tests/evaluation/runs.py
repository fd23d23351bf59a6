"""Workdirs as training leaves them, made without training, and an agent whose actions show what it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gorila_jax import checkpoints
from gorila_jax.agents import RECIPES, apply_preset, find_recipe
from gorila_jax.config import Config, override, to_json_dict
from gorila_jax.environments import environment_spec
from gorila_jax.networks.memoryless import memoryless
from gorila_jax.types import EnvironmentSpec, Inputs, Network


def toy_config(environment: str = "Catch-v0", **values: Any) -> Config:
    """The toy preset on `environment`; `values` are settings with `__` for the dot."""
    config = apply_preset(Config(agent="dqn", environment=environment), RECIPES["dqn"].presets["toy"])
    return override(config, {path.replace("__", "."): value for path, value in values.items()})


def atari_config(environment: str, **values: Any) -> Config:
    """A network small enough for tests."""
    small = {"env__frame_stack": 4, "network__filters": (4, 8), "network__hidden_units": (16,)}
    return toy_config(environment, **(small | values))


def initial_parameters(config: Config, seed: int = 0) -> Any:
    spec = environment_spec(config.environment, config.env)
    return find_recipe(config.agent).network(config, spec).init(jax.random.PRNGKey(seed))


def save_run(workdir: Path, config: Config, parameters: Any, *, frames: int = 400, version: int = 7) -> Path:
    workdir.mkdir(exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(to_json_dict(config)))
    host = jax.tree_util.tree_map(np.asarray, parameters)
    state = {"server": {"versions": np.array([version]), "parameters": host}}
    checkpoints.save(workdir / "checkpoints", frames, state, keep=3)
    return workdir


def _oldest_frame_network(config: Config, spec: EnvironmentSpec) -> Network:
    def init(key: Any) -> Any:
        return {"bias": jnp.zeros(spec.num_actions)}

    def apply(parameters: Any, stacks: Any) -> Any:  # [B, S] to [B, A]
        oldest = stacks[:, 0].astype(jnp.float32)
        return parameters["bias"] - jnp.abs(jnp.arange(spec.num_actions) - oldest[:, None])

    return memoryless(init, apply)


oldest_frame = RECIPES["dqn"]._replace(name="oldest_frame", network=_oldest_frame_network)
"""Its greedy action is the number in the oldest frame of the stack (of scalar observations)."""


def _first_number_network(config: Config, spec: EnvironmentSpec) -> Network:
    def initial_state(parameters: Any, size: int) -> Any:
        return jnp.full((size, 1), -1.0)

    def step(parameters: Any, inputs: Inputs, state: Any) -> tuple[Any, Any]:
        state = jnp.where(inputs.first[:, None], initial_state(parameters, len(inputs.first)), state)
        newest = inputs.stack[:, -1].astype(jnp.float32)[:, None]
        state = jnp.where(state < 0, newest, state)
        return parameters["bias"][None] - jnp.abs(jnp.arange(spec.num_actions)[None] - state), state

    def unroll(parameters: Any, inputs: Inputs, state: Any) -> tuple[Any, Any]:
        state, values = jax.lax.scan(lambda s, now: step(parameters, now, s)[::-1], state, inputs)
        return values, state

    return Network(lambda key: {"bias": jnp.zeros(spec.num_actions)}, initial_state, step, unroll)


first_number = RECIPES["r2d2"]._replace(name="first_number", network=_first_number_network)
"""Its greedy action is the number that the episode began with."""
