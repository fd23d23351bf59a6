"""Trains an agent: python -m launchers.train --agent=gorila --environment=Pong-v5 --workdir=runs/pong."""

from __future__ import annotations

from absl import flags

from gorila_jax.runtime.train import dry_run, train
from launchers.config_flags import MAIN_FLAGS, config_from_flags
from launchers.program import run

WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "directory of the run, runs/AGENT-ENVIRONMENT-SEED by default; one that holds this experiment is resumed",
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "check everything, print the plan, the memory and the topology, and end"
)
for _name in MAIN_FLAGS:
    flags.declare_key_flag(_name)  # --help shows them, --helpfull every setting


def main() -> int:
    config = config_from_flags()
    if DRY_RUN.value:
        dry_run(config, WORKDIR.value)
        return 0
    return train(config, WORKDIR.value).exit_code


if __name__ == "__main__":
    run(main)
