"""Tables and steps for the tests of replay."""

from __future__ import annotations

import numpy as np

from gorila_jax.replay import TableSpec, step_signature
from gorila_jax.types import EnvironmentSpec, Step


def table(
    shape=(3,), window=2, capacity=100, min_items=1, per_insert=0.0, buffer=0.0, exponent=0.0, state_size=0
):
    spec = EnvironmentSpec("counter", shape, np.dtype(np.uint8), 4, 1, {})
    return TableSpec(
        step_signature(spec), window, capacity, min_items, per_insert, buffer, exponent, state_size
    )


def step(number, shape=(3,)):
    """A step whose every field tells its number."""
    return Step(
        observation=np.full(shape, number % 256, np.uint8),
        action=np.int32(number),
        reward=np.float32(number / 2),
        discount=np.float32(0.99),
        valid=np.bool_(number % 2),
    )


def write(writer, numbers, priority=1.0, stream=0, window=2, shape=(3,)):
    """One row per number, and an item whenever the window is full, each admitted before the next."""
    for place, number in enumerate(numbers):
        writer.append(stream, step(number, shape))
        if place >= window - 1:
            writer.insert(stream, priority)
            assert writer.ready(10.0)
