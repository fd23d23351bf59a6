"""How much memory a replay takes, whichever backend stands behind it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing

import numpy as np
import pytest

from gorila_jax.replay import make_replay
from gorila_jax.replay.table import estimate_bytes
from gorila_jax.types import STORED_STATE
from tests.replay.steps import step, table

SHAPE = (256, 256)


def spec_of(capacity):
    return table(shape=SHAPE, window=5, capacity=capacity, state_size=64)


def fill_four_times(backend, stride, capacity):
    """Resident bytes before and after each time that a whole capacity of items, one for every `stride` rows,
    has gone into a table."""
    spec = spec_of(capacity)
    with contextlib.closing(make_replay(backend, spec, 1, run_id="run")) as replay:
        writer = replay.writer(0, 1)
        random = np.random.default_rng(0)
        for _ in range(spec.window_steps):
            writer.append(0, step(0, SHAPE))
        used = [_resident_bytes()]
        for _ in range(4):
            for row in range(stride * capacity):
                observation = random.integers(0, 255, SHAPE, np.uint8)  # noise does not compress
                writer.append(0, step(0, SHAPE)._replace(observation=observation))
                if row % stride == 0:
                    writer.insert(0, 1.0, random.random(spec.state_size).astype(STORED_STATE))
                    assert writer.ready(10.0)
            used.append(_resident_bytes())
    return used


@pytest.mark.parametrize(("stride", "capacity"), [(1, 500), (4, 150)])
def test_memory_is_what_was_estimated_and_stays_flat_once_a_table_is_full(backend, stride, capacity):
    # In a process of its own: memory that others have freed would be taken again unseen.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        used = pool.submit(fill_four_times, backend, stride, capacity).result()
    estimate = estimate_bytes(spec_of(capacity), 1, backend, stride)
    assert 0.8 * estimate < used[1] - used[0] < 1.2 * estimate
    assert used[4] - used[2] < 0.5 * estimate  # what never left would be 1.6 and more


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
