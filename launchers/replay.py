"""Serves replay tables from a process of its own, on this machine or another.

    RUN="--environment=Catch-v0 --config.replay.run_id=mine"
    python -m launchers.replay $RUN --config.replay.port=7000
    python -m launchers.train $RUN --config.replay.server_addresses=localhost:7000

A replay can be spread over several servers, with actors for each:

    RUN="--environment=Catch-v0 --config.replay.run_id=mine --num_actors=2 --num_replay_servers=2"
    python -m launchers.replay $RUN --index=0 --config.replay.port=7000
    python -m launchers.replay $RUN --index=1 --config.replay.port=7001
    python -m launchers.train $RUN --config.replay.server_addresses=localhost:7000,localhost:7001

Give all the same flags but for those of the server itself: the trainer refuses a server whose tables differ.
SIGINT and SIGTERM end it with code 0: that is how it is meant to end.
"""

from __future__ import annotations

import jax
from absl import flags

from gorila_jax.runtime.serve_replay import serve_replay
from launchers.config_flags import MAIN_FLAGS, config_from_flags
from launchers.program import run

INDEX = flags.DEFINE_integer(
    "index", 0, "which of the servers this one is, in the order of their addresses", 0
)
for _name in MAIN_FLAGS:
    flags.declare_key_flag(_name)


def main() -> int:
    jax.config.update("jax_platforms", "cpu")  # the trainer's accelerators are not this process's
    serve_replay(config_from_flags(), INDEX.value)
    return 0


if __name__ == "__main__":
    run(main)
