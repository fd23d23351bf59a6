"""Trains an agent: python -m launchers.train --agent=gorila --environment=Pong-v5 --workdir=runs/pong."""

from __future__ import annotations

from absl import flags

from gorila_jax.config import fields
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.train import dry_run, train
from launchers.program import run

SHORT = {
    "total_frames": "run.total_frames",
    "seed": "run.seed",
    "num_actors": "actor.num_actors",
    "num_learners": "learner.num_learners",
    "num_shards": "parameter_server.num_shards",
    "replay": "replay.layout",
    "replay_backend": "replay.backend",
    "lockstep": "run.lockstep",
    "host_devices": "run.host_devices",
    "platform": "run.platform",
    "init_from": "run.init_from",
}
"""Flags with a name of their own, and the setting that each one is."""

AGENT = flags.DEFINE_string("agent", "gorila", "dqn, gorila, or your_module:recipe")
ENVIRONMENT = flags.DEFINE_string(
    "environment", "Pong-v5", "an EnvPool name (pong, Pong-v5, Catch-v0, CartPole-v1), or your_module:factory"
)
PRESET = flags.DEFINE_enum("preset", None, ["paper", "small", "toy"], "the values to start from; chosen if not named")
WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run; one that holds this experiment is resumed")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "check everything, print the plan, the memory and the topology, and end")

_FIELDS = fields()
for _name, _path in SHORT.items():
    if _FIELDS[_path].type is bool:
        flags.DEFINE_bool(_name, None, f"{_FIELDS[_path].meaning} (config.{_path})")
    else:
        flags.DEFINE_string(_name, None, f"{_FIELDS[_path].meaning} (config.{_path})")
for _path, _field in _FIELDS.items():
    if "." in _path:
        flags.DEFINE_string(f"config.{_path}", None, f"{_field.meaning}; {_field.default!r} unless a preset says so")


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    overrides = {path: values[f"config.{path}"] for path in _FIELDS if "." in path}
    overrides |= {path: values[name] for name, path in SHORT.items() if values[name] is not None}
    config = make_config(
        AGENT.value,
        ENVIRONMENT.value,
        PRESET.value or "",
        {path: value for path, value in overrides.items() if value is not None},
    )
    if DRY_RUN.value:
        dry_run(config)
        return 0
    return train(config, WORKDIR.value).exit_code


if __name__ == "__main__":
    run(main)
