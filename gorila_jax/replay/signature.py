"""The fixed shape and dtype of every field of a `Step`, and what tables of them weigh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gorila_jax.types import ConfigError, EnvironmentSpec, ReplayError, Step


class Field(NamedTuple):
    """What one field of one row looks like."""

    shape: tuple[int, ...]
    dtype: np.dtype


Signature = Step
"""A `Step` whose leaves are `Field`s."""


def step_signature(spec: EnvironmentSpec) -> Signature:
    """The signature of the rows that an environment with this `spec` gives."""
    return Step(
        observation=Field(tuple(spec.observation_shape), np.dtype(spec.observation_dtype)),
        action=Field((), np.dtype(np.int32)),
        reward=Field((), np.dtype(np.float32)),
        discount=Field((), np.dtype(np.float32)),
        valid=Field((), np.dtype(np.bool_)),
    )


def check_step(signature: Signature, step: Step) -> None:
    """Raises ReplayError naming the first field of one row that does not fit, what came and what fits.

    Nothing is converted: a float64 reward is a mistake of its maker, and a silent cast would hide it.
    """
    if len(step) != len(signature):
        raise ReplayError(f"a step has the fields {signature._fields}, but {len(step)} values came")
    for name, field, value in zip(signature._fields, signature, step, strict=True):
        # np.asarray only for what is no array: this runs for every field of every row.
        array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value)
        if array.shape != field.shape or array.dtype != field.dtype:
            raise ReplayError(
                f"field {name!r} of a step came as {array.dtype} {array.shape}, "
                f"but the replay holds {field.dtype} {field.shape}"
            )


def row_bytes(fields: Iterable[Field]) -> int:
    """Bytes of the data of one row of these fields (or of a whole signature), uncompressed."""
    return sum(int(np.prod(field.shape, dtype=np.int64)) * field.dtype.itemsize for field in fields)


def estimate_bytes(
    signature: Signature,
    window_steps: int,
    capacity_items: int,
    num_tables: int = 1,
    backend: str = "reverb",
    *,
    stride_steps: int = 1,
    state_size: int = 0,
) -> int:
    """Bytes that `num_tables` full tables take, when an item starts at every `stride_steps`-th row.

    A row is stored once however many items refer to it, so a table holds about `stride_steps` rows for every
    item. What fills windows up at the ends of episodes comes on top.

    The constants were measured with rows of noise. Reverb compresses each row: noise takes a seventh more
    than its size there, frames of a game about half of it.

    Args:
      signature: of a row.
      window_steps: rows of an item.
      capacity_items: of one table.
      num_tables: all alike.
      backend: "reverb" or "memory".
      stride_steps: rows from the start of an item to that of the next one.
      state_size: numbers of the recurrent state that is stored with every item.
    """
    data, state = row_bytes(signature), 4 * state_size
    if backend == "memory":
        row, item = data + 440, 80 + 8 * window_steps + state
    else:
        row, item = data * 7 // 6 + 1000, 700 + 120 * window_steps + state * 7 // 6
    return num_tables * (capacity_items * (stride_steps * row + item) + (window_steps - stride_steps) * row)


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


def describe(signature: Signature) -> dict[str, Any]:
    """The signature as JSON values: `{"reward": ["float32", []], ...}`."""
    return {
        name: [field.dtype.name, list(field.shape)]
        for name, field in zip(signature._fields, signature, strict=True)
    }
