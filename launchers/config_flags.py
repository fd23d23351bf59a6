"""The flags that make a configuration: an agent, an environment, a preset and every single setting."""

from __future__ import annotations

from absl import flags

from gorila_jax.config import Config, fields
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import ConfigError

SHORT = {
    "total_frames": "run.total_frames",
    "seed": "run.seed",
    "num_actors": "actor.num_actors",
    "num_learners": "learner.num_learners",
    "num_shards": "parameter_server.num_shards",
    "replay": "replay.layout",
    "replay_backend": "replay.backend",
    "num_replay_servers": "replay.num_servers",
    "lockstep": "run.lockstep",
    "host_devices": "run.host_devices",
    "platform": "run.platform",
    "init_from": "run.init_from",
}
"""Flags with a name of their own, and the setting that each one is."""

AGENT = flags.DEFINE_string("agent", "gorila", "dqn, gorila, apex, drqn, r2d2, or your_module:recipe")
ENVIRONMENT = flags.DEFINE_string(
    "environment", "Pong-v5", "an EnvPool name (pong, Pong-v5, Catch-v0, CartPole-v1), or your_module:factory"
)
PRESET = flags.DEFINE_string(
    "preset", "", "paper, small or toy: the values to start from; chosen if not named"
)

MAIN_FLAGS = ("agent", "environment", "preset", *SHORT)

_FIELDS = {path: leaf for path, leaf in fields().items() if "." in path}
for _name, _path in SHORT.items():
    _define = flags.DEFINE_bool if _FIELDS[_path].type is bool else flags.DEFINE_string
    _define(_name, None, f"{_FIELDS[_path].meaning} (config.{_path})")
for _path, _field in _FIELDS.items():
    _help = f"{_field.meaning}; {_field.default!r} unless a preset says so"
    flags.DEFINE_string(f"config.{_path}", None, _help)


def config_from_flags() -> Config:
    """The configuration that the command line asks for. Raises ConfigError."""
    values = flags.FLAGS.flag_values_dict()
    overrides = {path: values[f"config.{path}"] for path in _FIELDS}
    for name, path in SHORT.items():
        if values[name] is not None:
            other = overrides[path]
            if other is not None and other.lower() != str(values[name]).lower():
                raise ConfigError(f"--{name}={values[name]} contradicts --config.{path}={other}")
            overrides[path] = values[name]
    given = {path: value for path, value in overrides.items() if value is not None}
    return make_config(AGENT.value, ENVIRONMENT.value, PRESET.value, given)
