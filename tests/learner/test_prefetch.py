from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from gorila_jax.config import LearnerConfig
from gorila_jax.learner import prefetch as prefetch_module
from gorila_jax.learner.prefetch import LATE_BATCHES, Prefetcher, StandIn, to_devices
from gorila_jax.types import Batch, ConfigError, ReplayError, SampleInfo
from tests.learner.problem import batch, no_state, shares, steps

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
    prefetcher = Prefetcher(settings, DEVICES, lambda timeout_s: Batch(steps(BATCH), no_state(BATCH), info))
    got = prefetcher.next_batch(0.0)
    np.testing.assert_allclose(got.weights, [(0.1 / probabilities) ** 0.5], rtol=1e-6)
    assert got.keys.tolist() == [0, 1, 2, 3]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(prefetch_module, "PATIENCE_S", 0.0)


class Source:
    """Gives batches of seeds from `seed` on, and counts them."""

    def __init__(self, seed: int):
        self.next_seed = seed

    def __call__(self, timeout_s):
        self.next_seed += 1
        return batch(BATCH, self.next_seed - 1)


def with_stand_in(prefetch_batches: int = 2) -> tuple[Prefetcher, Source, StandIn, Source]:
    own, other = Source(0), Source(100)
    prefetcher = Prefetcher(LearnerConfig(batch_size=BATCH, prefetch_batches=prefetch_batches), DEVICES, own)
    return prefetcher, own, StandIn(prefetcher, other), other


def test_a_stand_in_does_nothing_while_nobody_waits(impatient):
    prefetcher, _, stand_in, other = with_stand_in()
    assert not stand_in.step(0.0)  # nobody has asked for a batch yet
    for seed in range(5):
        assert prefetcher.step(0.0)
        assert not stand_in.step(0.0)
        assert_is(prefetcher.next_batch(0.0), seed)
    assert other.next_seed == 100


def test_a_stand_in_leaves_a_prefetcher_its_time(monkeypatch):
    monkeypatch.setattr(prefetch_module, "PATIENCE_S", LONG_S)
    prefetcher, _, stand_in, other = with_stand_in()
    assert prefetcher.next_batch(0.0) is None
    results = []
    looking_on = threading.Thread(target=lambda: results.append(stand_in.step(LONG_S)))
    looking_on.start()
    assert prefetcher.step(0.0)
    looking_on.join(LONG_S)
    assert results == [False]
    assert other.next_seed == 100


def test_a_stand_in_that_brings_batches_alone_replaces_the_prefetcher(impatient):
    prefetcher, own, stand_in, _ = with_stand_in()
    for seed in range(100, 100 + LATE_BATCHES):
        assert prefetcher.next_batch(0.0) is None
        assert stand_in.step(LONG_S)
        assert_is(prefetcher.next_batch(0.0), seed)
    assert not prefetcher.step(0.0)
    assert own.next_seed == 0
    assert [stand_in.step(0.0) for _ in range(3)] == [True, True, False]  # up to what is to be in store
    assert_is(prefetcher.next_batch(0.0), 100 + LATE_BATCHES)


def test_a_prefetcher_that_comes_in_time_again_keeps_its_place(impatient):
    prefetcher, _, stand_in, _ = with_stand_in()
    for _ in range(2 * LATE_BATCHES):
        assert prefetcher.next_batch(0.0) is None
        assert stand_in.step(LONG_S)
        assert prefetcher.step(0.0)  # before it is asked for
        for _ in range(2):
            assert prefetcher.next_batch(0.0) is not None
    assert prefetcher.step(0.0)


def test_a_prefetcher_that_is_always_late_does_not(impatient):
    prefetcher, _, stand_in, _ = with_stand_in()
    for _ in range(LATE_BATCHES):
        for worker in (prefetcher, stand_in):
            assert prefetcher.next_batch(0.0) is None
            assert worker.step(LONG_S)
            assert prefetcher.next_batch(0.0) is not None
    assert not prefetcher.step(0.0)
    assert stand_in.step(0.0)


def test_a_stand_in_without_a_batch_changes_nothing(impatient):
    prefetcher, _, _, _ = with_stand_in()
    stand_in = StandIn(prefetcher, lambda timeout_s: None)
    for _ in range(2 * LATE_BATCHES):
        assert prefetcher.next_batch(0.0) is None
        assert not stand_in.step(0.0)
    assert prefetcher.step(0.0)
