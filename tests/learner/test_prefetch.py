from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.prefetch import Prefetcher, to_devices
from gorila_jax.types import Batch, ConfigError, ReplayError, SampleInfo
from tests.learner.problem import batch, shares, steps

BATCH = 4
DEVICES = jax.devices()[:1]
LONG_S = 60.0  # far longer than anything here takes: a test that waits for it has failed


def prefetcher_of(batches, prefetch_batches: int) -> Prefetcher:
    batches = iter(batches)
    settings = LearnerConfig(batch_size=BATCH, prefetch_batches=prefetch_batches)
    return Prefetcher(settings, DEVICES, lambda timeout_s: next(batches))


def assert_is(got, seed: int) -> None:
    for rows, expected in zip(got.steps, shares(steps(BATCH, seed), 1), strict=True):
        assert rows.dtype == expected.dtype
        np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(got.weights, np.ones((1, BATCH)))


def test_batches_come_in_order_and_no_more_than_asked_for():
    prefetcher = prefetcher_of([batch(BATCH, seed) for seed in range(4)], 2)
    assert [prefetcher.step(0.0) for _ in range(4)] == [True, True, False, False]
    assert_is(prefetcher.next_batch(0.0), 0)
    assert prefetcher.step(0.0)
    for seed in (1, 2):
        assert_is(prefetcher.next_batch(0.0), seed)
    assert prefetcher.next_batch(0.0) is None


def test_without_prefetch_each_batch_is_sampled_when_it_is_asked_for():
    taken = []

    def sample(timeout_s):
        taken.append(timeout_s)
        return batch(BATCH, len(taken) - 1) if len(taken) < 3 else None

    prefetcher = Prefetcher(LearnerConfig(batch_size=BATCH, prefetch_batches=0), DEVICES, sample)
    assert taken == []
    assert_is(prefetcher.next_batch(1.5), 0)
    assert_is(prefetcher.next_batch(2.5), 1)
    assert prefetcher.next_batch(3.5) is None
    assert taken == [1.5, 2.5, 3.5]


def test_a_replay_that_gives_nothing_is_no_batch():
    prefetcher = prefetcher_of([None, batch(BATCH, 5)], 1)
    assert not prefetcher.step(0.0)
    assert prefetcher.next_batch(0.0) is None
    assert prefetcher.step(0.0)
    assert_is(prefetcher.next_batch(0.0), 5)


def test_on_the_cpu_a_batch_is_not_copied():
    source = batch(BATCH, 0)
    got = prefetcher_of([source], 0).next_batch(0.0)
    for rows, sampled in zip(got.steps, source.steps, strict=True):
        assert np.shares_memory(rows, sampled)


def test_each_device_gets_its_share():
    moved = to_devices(DEVICES)(shares(steps(BATCH, 3), 1))
    for rows, expected in zip(moved, shares(steps(BATCH, 3), 1), strict=True):
        assert isinstance(rows, jax.Array)
        assert rows.dtype == expected.dtype
        np.testing.assert_array_equal(rows, expected)


def test_what_the_replay_raises_comes_through():
    def sample(timeout_s):
        raise ReplayError("gone")

    prefetcher = Prefetcher(LearnerConfig(batch_size=BATCH, prefetch_batches=1), DEVICES, sample)
    with pytest.raises(ReplayError, match="gone"):
        prefetcher.step(0.0)


def test_two_threads_hand_over_every_batch_in_order():
    """The one that waits is woken by the other, on either side."""
    total = 50
    prefetcher = prefetcher_of([batch(BATCH, seed) for seed in range(total)], 2)

    def fill() -> None:
        moved = 0
        while moved < total:
            moved += prefetcher.step(LONG_S)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    for seed in range(total):
        assert_is(prefetcher.next_batch(LONG_S), seed)
    filler.join(LONG_S)
    assert not filler.is_alive()


def test_devices_that_cannot_share_the_batch_are_refused():
    with pytest.raises(ConfigError, match="3 devices"):
        Prefetcher(LearnerConfig(batch_size=4), jax.devices()[:1] * 3, lambda timeout_s: None)


def test_importance_weights_are_of_the_global_batch_and_travel_with_it():
    probabilities = np.array([0.1, 0.4, 0.2, 0.3])
    info = SampleInfo(np.arange(BATCH), probabilities, np.full(BATCH, 5))
    settings = LearnerConfig(batch_size=BATCH, prefetch_batches=0, importance_exponent=0.5)
    prefetcher = Prefetcher(settings, DEVICES, lambda timeout_s: Batch(steps(BATCH), info))
    got = prefetcher.next_batch(0.0)
    np.testing.assert_allclose(got.weights, [(0.1 / probabilities) ** 0.5], rtol=1e-6)
    assert got.keys.tolist() == [0, 1, 2, 3]
