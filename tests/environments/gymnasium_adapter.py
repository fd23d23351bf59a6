"""The adapter of user environments, made and played by its tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import make_environment
from gorila_jax.environments.gymnasium import GymnasiumEnvironment
from gorila_jax.types import EnvironmentStep

HERE = "tests.environments.user_environments"
WALK = f"{HERE}:Walk"


def make(
    name: str, size: int = 2, seed: int = 0, renderable: bool = False, **options: Any
) -> GymnasiumEnvironment:
    config = EnvironmentConfig(num_environments=size, **options)
    made = make_environment(name, config, seed=seed, renderable=renderable)
    assert isinstance(made, GymnasiumEnvironment)
    return made


def play(environment: GymnasiumEnvironment, steps: int) -> list[EnvironmentStep]:
    random = np.random.default_rng(0)
    trace = [environment.reset()]
    for _ in range(steps):
        trace.append(environment.step(random.integers(2, size=environment.num_environments, dtype=np.int32)))
    environment.close()
    return trace


def same(one: list[EnvironmentStep], other: list[EnvironmentStep]) -> bool:
    return all(
        np.array_equal(ours, theirs)
        for step, its in zip(one, other, strict=True)
        for ours, theirs in zip(step, its, strict=True)
    )
