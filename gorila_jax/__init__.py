"""Distributed deep Q-learning in JAX: one architecture, and every agent is a setting of it.

    config = gorila_jax.make_config("gorila", "Catch-v0", overrides={"run.seed": 3})
    result = gorila_jax.train(config, "runs/catch")
    policy = gorila_jax.load_policy(result.workdir)

and `policy(observation)` is an action.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gorila_jax.config import Config, override
    from gorila_jax.evaluation.policy import load_policy
    from gorila_jax.runtime.configure import make_config
    from gorila_jax.runtime.train import TrainResult, train

__all__ = ["Config", "TrainResult", "load_policy", "make_config", "override", "train"]

_HOMES = {
    "Config": "gorila_jax.config",
    "override": "gorila_jax.config",
    "load_policy": "gorila_jax.evaluation.policy",
    "make_config": "gorila_jax.runtime.configure",
    "train": "gorila_jax.runtime.train",
    "TrainResult": "gorila_jax.runtime.train",
}


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


def __getattr__(name: str) -> Any:
    """The verbs are imported when first used: a worker that needs one of them does not load the others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
