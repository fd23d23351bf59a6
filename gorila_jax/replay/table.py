"""What a replay table is: a plain record that both backends build their tables from."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gorila_jax.replay import signature as signatures
from gorila_jax.replay.limiter import Limiter, check_limiter
from gorila_jax.types import STORED_STATE, ConfigError, ReplayError

SETTINGS_FILE = "replay.json"
_FORMAT = 2


class TableSpec(NamedTuple):
    """One table; a run's tables are all alike. When full, the oldest item leaves for each that comes."""

    signature: signatures.Signature
    window_steps: int  # W: rows of one item
    capacity_items: int
    min_items: int  # before the first sample
    samples_per_insert: float  # 0: free
    error_buffer: float  # in samples; means nothing when samples_per_insert is 0
    priority_exponent: float  # 0: uniform; else an item is drawn in proportion to priority ** exponent
    state_size: int = 0  # K: numbers of the recurrent state that comes with every item

    @property
    def limiter(self) -> Limiter:
        return Limiter(self.min_items, self.samples_per_insert, self.error_buffer)

    @property
    def proportional(self) -> bool:
        return self.priority_exponent != 0


def check_table(table: TableSpec, num_tables: int) -> None:
    """Raises ConfigError for a table that cannot work, naming the number that is wrong."""
    for name, value, least in [
        ("window_steps", table.window_steps, 1),
        ("capacity_items", table.capacity_items, 1),
        ("min_items", table.min_items, 1),
        ("num_tables", num_tables, 1),
        ("samples_per_insert", table.samples_per_insert, 0),
        ("priority_exponent", table.priority_exponent, 0),
        ("state_size", table.state_size, 0),
    ]:
        if not (math.isfinite(value) and value >= least):
            raise ConfigError(f"replay: {name} is {value}, but must be at least {least}")
    if table.min_items > table.capacity_items:
        raise ConfigError(
            f"replay: the first sample waits for {table.min_items} items, but a table holds at most "
            f"{table.capacity_items}: it would wait for ever"
        )
    check_limiter(table.limiter)


def split_table(table: TableSpec, num_tables: int) -> TableSpec:
    """One of `num_tables` equal tables that together are what `table` describes.

    They share its capacity (rounded down), the items before the first sample (rounded up) and the error
    buffer; each keeps the same ratio of samples to inserts.
    """
    return table._replace(
        capacity_items=table.capacity_items // num_tables,
        min_items=-(-table.min_items // num_tables),
        error_buffer=table.error_buffer / num_tables,
    )


def estimate_bytes(table: TableSpec, num_tables: int, backend: str, stride_steps: int) -> int:
    """Bytes that `num_tables` such tables take when they are full, in long episodes.

    A row is stored once however many items refer to it, so a table holds about `stride_steps` rows for every
    item. What fills windows up at the two ends of an episode comes on top.

    The constants were measured with rows of noise. Reverb compresses each row: noise takes a seventh more
    than its size there, frames of a game about half of it.

    Args:
      table: all are alike.
      num_tables: how many.
      backend: "reverb" or "memory".
      stride_steps: rows from the start of an item to that of the next one.
    """
    data, window = signatures.row_bytes(table.signature), table.window_steps
    state = STORED_STATE.itemsize * table.state_size
    if backend == "memory":
        row, item = data + 440, 80 + 8 * window + state
    else:
        row, item = data * 7 // 6 + 1000, 700 + 120 * window + state * 7 // 6
    return num_tables * (table.capacity_items * (stride_steps * row + item) + (window - stride_steps) * row)


def check_memory(needed_bytes: int, free_bytes: int, capacity_steps: int) -> None:
    """Raises ConfigError when the replay cannot fit, with a capacity that would.

    Args:
      needed_bytes: of the replay when it is full.
      free_bytes: whoever calls this has read the machine's free memory.
      capacity_steps: the setting that made it so large.
    """
    if needed_bytes > free_bytes:
        fits = f"{0.9 * capacity_steps * free_bytes / needed_bytes:.1e}"
        raise ConfigError(
            f"the replay needs about {needed_bytes / 1e9:.1f} GB when full, but {free_bytes / 1e9:.1f} GB of "
            f"memory are free: lower replay.capacity_steps from {capacity_steps:,} to about "
            f"{int(float(fits)):,}"
        )


def check_state(table: TableSpec, state: np.ndarray) -> None:
    """Raises ReplayError unless the state is what the table holds with every item."""
    if state.shape != (table.state_size,) or state.dtype != STORED_STATE:
        raise ReplayError(
            f"a recurrent state came as {state.dtype} {state.shape}, but the replay holds {STORED_STATE} "
            f"({table.state_size},) with every item"
        )


def check_priority(priority: float) -> None:
    """Raises ValueError unless the priority is a finite number of at least 0."""
    if not (math.isfinite(priority) and priority >= 0):
        raise ValueError(f"a priority must be finite and at least 0, but {priority} came")


def check_priorities(keys: np.ndarray, priorities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays [N] uint64 and float64; ValueError, before anything is sent, when one is unusable."""
    keys, priorities = np.asarray(keys), np.asarray(priorities, dtype=np.float64)
    if keys.ndim != 1 or keys.shape != priorities.shape:
        raise ValueError(f"keys {keys.shape} and priorities {priorities.shape} must be two equal vectors")
    bad = ~(np.isfinite(priorities) & (priorities >= 0))
    if bad.any():
        raise ValueError(
            f"{int(bad.sum())} of {bad.size} priorities are negative or not finite, the first is "
            f"{priorities[bad][0]}; no priority was changed"
        )
    return keys.astype(np.uint64, copy=False), priorities


def describe(table: TableSpec) -> dict[str, Any]:
    """The table as JSON values."""
    signature = signatures.describe(table.signature)
    states = {"state_dtype": STORED_STATE.name} if table.state_size else {}
    return {**table._asdict(), **states, "signature": signature}


@contextlib.contextmanager
def appears_whole(directory: str) -> Iterator[pathlib.Path]:
    """A new directory to write a replay into, which becomes `directory` once the body has succeeded.

    Until then it has another name beside that one; after a failure nothing is left of it.

    Raises:
      ReplayError: `directory` exists already, or the body raised an OSError or a ReplayError.
    """
    path = pathlib.Path(directory)
    if path.exists():
        raise ReplayError(f"cannot save the replay: {path} exists already")
    part = path.with_name(path.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        os.rename(part, path)
    except (OSError, ReplayError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ReplayError(f"cannot save the replay to {path}: {error}") from error


def write_settings(
    directory: pathlib.Path, backend: str, table: TableSpec, num_tables: int, **more: Any
) -> None:
    """Puts the settings of a saved replay beside its data; `more` is what only that backend reads."""
    settings = {"format": _FORMAT, "backend": backend, "num_tables": num_tables, "table": describe(table)}
    (directory / SETTINGS_FILE).write_text(json.dumps({**settings, **more}, indent=1) + "\n")


def read_settings(directory: pathlib.Path, backend: str, table: TableSpec, num_tables: int) -> dict[str, Any]:
    """The settings of a saved replay, when it was saved from tables like these.

    Raises:
      ReplayError: nothing was saved there, or it differs; the message lists every difference, old and new.
    """
    path = directory / SETTINGS_FILE
    try:
        old = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReplayError(f"no saved replay in {directory}: {error}") from error
    new = {"format": _FORMAT, "backend": backend, "num_tables": num_tables, **describe(table)}
    saved = {**{name: old.get(name) for name in ("format", "backend", "num_tables")}, **old.get("table", {})}
    differences = [
        f"  {name}: {saved.get(name)} was saved, {new.get(name)} is set now"
        for name in sorted(new.keys() | saved.keys())
        if saved.get(name) != new.get(name)
    ]
    if differences:
        raise ReplayError(
            f"the replay saved in {directory} has other settings than this run. Set them back, or start "
            "without it:\n" + "\n".join(differences)
        )
    return old
