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


def rows(numbers, shape=(3,)):
    """Rows [N, ...] of several steps."""
    return Step(*map(np.stack, zip(*(step(number, shape) for number in numbers), strict=True)))


def write(writer, numbers, priority=1.0, stream=0, window=2, shape=(3,)):
    """One row per number, and an item whenever the window is full, each admitted before the next."""
    for place, number in enumerate(numbers):
        writer.append(stream, step(number, shape))
        if place >= window - 1:
            writer.insert(stream, priority)
            assert writer.ready(10.0)


def write_with_states(writer, streams, numbers):
    """A row for every number, and an item of the last two with the state [number, stream, -number]."""
    for number in numbers:
        for stream in range(streams):
            writer.append(stream, step(number))
            if number:
                writer.insert(stream, 1.0, np.array([number, stream, -number], np.float16))
        assert writer.ready(10.0)


def check_states(batch):
    assert batch.state.shape == (len(batch.info.keys), 3)
    np.testing.assert_array_equal(batch.state[:, 0], batch.steps.action[:, -1])
    np.testing.assert_array_equal(batch.state[:, 2], -batch.state[:, 0])


def draws(sampler, batches):
    """`batches` batches as one: fields [N, W, ...] and info [N]."""
    drawn = [sampler.sample(10.0) for _ in range(batches)]
    steps = Step(*(np.concatenate(column) for column in zip(*(batch.steps for batch in drawn), strict=True)))
    return steps, [np.concatenate(column) for column in zip(*(batch.info for batch in drawn), strict=True)]
