"""The fixed shape and dtype of every field of a `Step`, and what tables of them weigh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gorila_jax.types import EnvironmentSpec, ReplayError, Step


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


def one_row(step: Step) -> Step:
    """The row as a batch of one: fields [1, ...]."""
    return Step(*(np.asarray(value)[None] for value in step))


def check_steps(signature: Signature, steps: Step, count: int) -> None:
    """Raises ReplayError naming the first field of `count` rows that does not fit, what came and what fits.

    Nothing is converted: a float64 reward is a mistake of its maker, and a silent cast would hide it.
    """
    if len(steps) != len(signature):
        raise ReplayError(f"a step has the fields {signature._fields}, but {len(steps)} values came")
    for name, field, values in zip(signature._fields, signature, steps, strict=True):
        array = np.asarray(values)
        if array.shape[:1] != (count,):
            raise ReplayError(f"field {name!r} came as {array.shape} for {count} streams")
        if array.shape[1:] != field.shape or array.dtype != field.dtype:
            raise ReplayError(
                f"field {name!r} of a step came as {array.dtype} {array.shape[1:]}, "
                f"but the replay holds {field.dtype} {field.shape}"
            )


def row_bytes(fields: Iterable[Field]) -> int:
    """Bytes of the data of one row of these fields (or of a whole signature), uncompressed."""
    return sum(int(np.prod(field.shape, dtype=np.int64)) * field.dtype.itemsize for field in fields)


def describe(signature: Signature) -> dict[str, Any]:
    """The signature as JSON values: `{"reward": ["float32", []], ...}`."""
    return {
        name: [field.dtype.name, list(field.shape)]
        for name, field in zip(signature._fields, signature, strict=True)
    }
