"""The configuration of a run: what can be set, how it is changed, and what it must fulfil."""

from __future__ import annotations

from gorila_jax.config.overrides import from_json_dict, override, to_json_dict
from gorila_jax.config.settings import (
    ActorConfig,
    CheckpointConfig,
    Config,
    EnvironmentConfig,
    LearnerConfig,
    NetworkConfig,
    ParameterServerConfig,
    ReplayConfig,
    RunConfig,
    SequenceConfig,
    fields,
    get,
)
from gorila_jax.config.validation import check_values, validate

__all__ = [
    "ActorConfig",
    "CheckpointConfig",
    "Config",
    "EnvironmentConfig",
    "LearnerConfig",
    "NetworkConfig",
    "ParameterServerConfig",
    "ReplayConfig",
    "RunConfig",
    "SequenceConfig",
    "check_values",
    "fields",
    "from_json_dict",
    "get",
    "override",
    "to_json_dict",
    "validate",
]
