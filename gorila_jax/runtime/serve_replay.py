"""A replay server in a process of its own."""

from __future__ import annotations

import signal
import threading

import psutil

from gorila_jax.agents import find_recipe
from gorila_jax.config import Config
from gorila_jax.environments import environment_spec
from gorila_jax.replay import reverb_available
from gorila_jax.replay.table import check_memory, estimate_bytes
from gorila_jax.runtime.plan import table_spec
from gorila_jax.runtime.topology import count_tables
from gorila_jax.types import ConfigError


def serve_replay(config: Config, index: int = 0) -> None:
    """Serves what is server `index`'s among the tables of this run, until SIGINT or SIGTERM.

    Raises:
      ConfigError: the settings cannot work, `replay.run_id` or `replay.port` among them; or the run has no
        server of that index.
      ReplayError: the port is taken.
    """
    if not config.replay.run_id or not config.replay.port:
        raise ConfigError(
            "a replay server needs config.replay.run_id, a name that its trainer repeats, and a port"
        )
    if not reverb_available():
        raise ConfigError("a replay server needs Reverb, which is not installed here: see BUILD.md")
    from gorila_jax.replay.reverb import ReplayServer  # loads TensorFlow

    recipe, spec = find_recipe(config.agent), environment_spec(config.environment, config.env)
    num_tables, num_servers = count_tables(config), config.replay.server_count
    table = table_spec(config, recipe, spec)
    own_tables = len(range(index, num_tables, num_servers))
    needed = estimate_bytes(table, own_tables, "reverb", recipe.layout(config).stride_steps)
    check_memory(needed, psutil.virtual_memory().available, config.replay.capacity_steps)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    server = ReplayServer(
        table,
        num_tables,
        config.replay.run_id,
        config.replay.port,
        index=index,
        num_servers=num_servers,
    )
    print(f"replay server {index} of run {config.replay.run_id} is ready on port {server.port}", flush=True)
    stopped.wait()
    server.stop()
