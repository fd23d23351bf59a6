"""Pools of EnvPool's environments, and random play in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import make_environment
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.types import EnvironmentStep


class Tapped:
    """An EnvPool that also keeps the raw flags of every step."""

    def __init__(self, pool: Any):
        self._pool = pool
        self.raw: list[dict[str, np.ndarray]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def recv(self) -> tuple:
        result = self._pool.recv()
        _, reward, terminated, truncated, info = result
        keep = {key: info[key].copy() for key in ("lives", "elapsed_step")}
        keep |= {"game_over": info["terminated"] == 1, "terminated": terminated, "truncated": truncated}
        self.raw.append({"reward": reward, **keep})
        return result


def make(name: str, size: int = 1, seed: int = 0, training: bool = True, **options: Any) -> PoolEnvironment:
    made = make_environment(
        name, EnvironmentConfig(**options), seed=seed, num_environments=size, training=training
    )
    assert isinstance(made, PoolEnvironment)
    return made


def play(environment: PoolEnvironment, steps: int, seed: int = 0) -> tuple[list[EnvironmentStep], dict]:
    """`steps` random steps after a reset, and EnvPool's raw fields of the same steps, [steps, E] each."""
    tapped = Tapped(environment._pool)
    environment._pool = tapped
    random = np.random.default_rng(seed)
    size, num_actions = environment.num_environments, environment.spec.num_actions
    trace = [environment.reset()]
    trace += [environment.step(random.integers(num_actions, size=size, dtype=np.int32)) for _ in range(steps)]
    environment.close()
    return trace, {key: np.stack([each[key] for each in tapped.raw]) for key in tapped.raw[0]}


def field(trace: list[EnvironmentStep], name: str) -> np.ndarray:
    """One field of all steps but the reset's, [steps, E, ...]."""
    return np.stack([getattr(step, name) for step in trace[1:]])
