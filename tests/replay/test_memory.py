"""What only the in-process replay promises: the same draws for the same seed, rows that exist once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from gorila_jax.replay import make_replay
from gorila_jax.replay.memory.sum_tree import SumTree
from tests.replay.steps import step, table, write


def run(seed, exponent):
    replay = make_replay("memory", table(capacity=20, exponent=exponent), 1, seed=seed)
    writer, sampler = replay.writer(0, 1), replay.sampler(0, 8)
    keys = []
    for number in range(10):
        write(writer, range(number, number + 4), priority=1.0 + number)
        batch = sampler.sample(0.0)
        keys.append(batch.info.keys)
        sampler.update_priorities(batch.info.keys, batch.steps.reward[:, 0] + 0.5)
    return replay, np.array(keys)


@pytest.mark.parametrize("exponent", [0.0, 0.7])
def test_the_seed_decides_every_draw(exponent):
    np.testing.assert_array_equal(run(1, exponent)[1], run(1, exponent)[1])
    assert (run(1, exponent)[1] != run(2, exponent)[1]).any()


@pytest.mark.parametrize("exponent", [0.0, 0.7])
def test_a_restored_replay_draws_as_the_saved_one_would_have(tmp_path, exponent):
    old, _ = run(1, exponent)
    old.save(str(tmp_path / "saved"))
    new = make_replay("memory", table(capacity=20, exponent=exponent), 1, seed=99)
    new.restore(str(tmp_path / "saved"))
    for _ in range(3):
        before, after = old.sampler(0, 8).sample(0.0), new.sampler(0, 8).sample(0.0)
        for left, right in zip(before.steps + before.info, after.steps + after.info, strict=True):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype


def test_tables_of_one_replay_draw_differently():
    replay = make_replay("memory", table(), 2, seed=0)
    for number in (0, 1):
        write(replay.writer(number, 1), range(50))
    first, second = (replay.sampler(number, 32).sample(0.0).info.keys for number in (0, 1))
    assert (first != second).any()


def test_a_row_is_stored_once_and_freed_with_its_last_item():
    window, capacity = 5, 10
    replay = make_replay("memory", table(window=window, capacity=capacity), 1, seed=0)
    writer = replay.writer(0, 1)
    stored = []
    for number in range(100):
        writer.append(0, step(number))
        stored.append(weakref.ref(writer._streams[0][-1].observation))
        if number >= window - 1:
            writer.insert(0, 1.0)
    gc.collect()
    alive = [number for number, reference in enumerate(stored) if reference() is not None]
    assert alive == list(range(100 - capacity - window + 1, 100))
    items = replay._tables[0]._items
    assert len({id(row) for item in items for row in item.rows}) == capacity + window - 1


def test_of_equal_keys_the_last_priority_holds():
    replay = make_replay("memory", table(exponent=1.0), 1, seed=0)
    write(replay.writer(0, 1), range(3))
    sampler = replay.sampler(0, 64)
    assert sampler.update_priorities(np.array([0, 0, 7], np.uint64), np.array([9.0, 3.0, 1.0])) == 1
    info = sampler.sample(0.0).info
    np.testing.assert_allclose(info.probabilities[info.keys == 0], 3 / 4)


def test_items_of_priority_zero_alone_are_drawn_evenly():
    replay = make_replay("memory", table(exponent=0.5), 1, seed=0)
    write(replay.writer(0, 1), range(5), priority=0.0)
    np.testing.assert_allclose(replay.sampler(0, 8).sample(0.0).info.probabilities, 1 / 4)


@pytest.mark.parametrize("capacity", [1, 2, 5, 8])
def test_a_sum_tree_draws_each_slot_on_its_share_of_the_line(capacity):
    tree = SumTree(capacity)
    weights = np.arange(capacity, dtype=np.float64) + (capacity == 1)  # slot 0 weighs nothing beside others
    tree.set(np.arange(capacity), weights)
    assert tree.total == weights.sum()
    edges = np.cumsum(weights) / weights.sum()
    for slot in np.flatnonzero(weights):
        low = edges[slot - 1] if slot else 0.0
        inside = low + (edges[slot] - low) * np.array([0.01, 0.5, 0.99])
        assert (tree.draw(inside) == slot).all()


def test_rounding_never_draws_an_empty_slot():
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([0.1, 0.2, 0.0, 0.0]))
    assert tree.draw(np.array([0.0, np.nextafter(1.0, 0.0), 1.0])).tolist() == [0, 1, 1]


def test_a_sum_tree_does_not_drift():
    tree, random = SumTree(64), np.random.default_rng(0)
    weights = np.zeros(64)
    for _ in range(2000):
        slots = random.integers(64, size=8)
        values = 10.0 ** random.uniform(-6, 6, size=8)
        tree.set(slots, values)
        weights[slots] = values
        tree.set_one(int(slots[0]), 1.0)
        weights[slots[0]] = 1.0
    np.testing.assert_array_equal(tree.get(np.arange(64)), weights)
    assert tree.total == pytest.approx(weights.sum(), rel=1e-14)
