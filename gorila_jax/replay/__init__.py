"""Replay: actors insert items, learners draw batches of them and send new priorities back.

Two backends stand behind the same ports (`types.Replay`): `reverb`, across processes and machines, and
`memory`, inside this process, seeded. Importing this package loads neither Reverb nor TensorFlow.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from gorila_jax.replay.signature import step_signature
from gorila_jax.replay.spread import spread_sampler
from gorila_jax.replay.table import TableSpec, split_table
from gorila_jax.types import ConfigError, Replay, ReplayError

__all__ = [
    "TableSpec",
    "make_replay",
    "reverb_available",
    "split_table",
    "spread_sampler",
    "step_signature",
]


def reverb_available() -> bool:
    """Whether Reverb and TensorFlow are installed. Looks only, because importing them takes seconds."""
    return all(importlib.util.find_spec(name) is not None for name in ("reverb", "tensorflow"))


def make_replay(
    backend: str,
    table: TableSpec,
    num_tables: int,
    *,
    seed: int = 0,
    run_id: str = "",
    addresses: Sequence[str] = (),
    port: int = 0,
    num_servers: int = 1,
) -> Replay:
    """Builds the replay of a run.

    Args:
      backend: "reverb" or "memory".
      table: what every table is like: for a global replay a share of the whole, see `split_table`.
      num_tables: one per server for a global replay, else one per bundle of actors and a learner.
      seed: of the draws; Reverb's cannot be seeded.
      run_id: what a Reverb server must answer to, so that two runs never mix; unused in memory.
      addresses: `host:port` of running Reverb servers; none: they are started in this process.
      port: of the first server started here, the others take the ones after it; 0: any free ones.
      num_servers: Reverb servers to start here, at most one per table; unused in memory and with addresses.

    Raises:
      ConfigError: the settings cannot work, or the backend cannot do them.
      ReplayError: Reverb cannot be loaded, a server does not answer, or is another run's.
    """
    if backend == "memory":
        if addresses or port:
            raise ConfigError("the in-process replay has no servers: leave addresses and port unset")
        from gorila_jax.replay.memory import MemoryReplay

        return MemoryReplay(table, num_tables, seed)
    if backend == "reverb":
        try:
            from gorila_jax.replay.reverb import ReverbReplay
        except ImportError as error:
            raise ReplayError(
                f"Reverb cannot be loaded ({error}). It needs the TensorFlow release that it was built for, "
                "and Python 3.11 or older; without it use the in-process replay, --replay_backend=memory"
            ) from error

        return ReverbReplay(table, num_tables, run_id, addresses, port, num_servers)
    raise ConfigError(f"unknown replay backend {backend!r}: there are 'reverb' and 'memory'")
