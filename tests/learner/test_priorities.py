"""Priorities on their way back to replay."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher
from gorila_jax.learner.priorities import BATCHES_PER_WRITE, WAITING_BATCHES, PriorityWriter
from gorila_jax.types import Gradient, SampleInfo, Snapshot
from tests.learner.problem import batch, expected, loss_fn, parameters, replicated, steps

BATCH = 8
LONG_S = 60.0


class Table:
    """Keeps what it is told; keys below `oldest` are gone."""

    def __init__(self, oldest: int = 0):
        self.oldest = oldest
        self.updates: list[tuple[list[int], list[float]]] = []

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        self.updates.append((keys.tolist(), priorities.tolist()))
        return int((keys < self.oldest).sum())


def test_a_batch_is_written_with_the_keys_it_came_with():
    table = Table(oldest=1)
    writer = PriorityWriter(table.update)
    assert not writer.step(0.0)
    writer.send(np.arange(4, dtype=np.uint64), jax.numpy.array([[0.5, 1.5], [2.5, 3.5]]))  # of two devices
    assert writer.step(0.0)
    assert table.updates == [([0, 1, 2, 3], [0.5, 1.5, 2.5, 3.5])]
    assert writer.counts() == (3, 1, 0, 0)  # written, evicted, not finite, dropped


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_is_ever_sent(bad):
    table = Table()
    writer = PriorityWriter(table.update)
    writer.send(np.arange(3), jax.numpy.array([[1.0, bad, 3.0]]))
    writer.send(np.arange(2), jax.numpy.array([[bad, bad]]))
    assert writer.step(0.0)
    writer.send(np.arange(2), jax.numpy.array([[bad, bad]]))
    assert writer.step(0.0)
    assert table.updates == [([0, 2], [1, 3])]
    assert writer.counts() == (2, 0, 5, 0)


def test_batches_that_wait_are_written_together_in_their_order():
    table = Table()
    writer = PriorityWriter(table.update)
    for number in range(BATCHES_PER_WRITE + 1):
        writer.send(np.array([7, number]), jax.numpy.array([[number], [number]]))
    assert writer.step(LONG_S)  # there are enough: it does not wait for more
    assert writer.step(0.0)
    together = [key for number in range(BATCHES_PER_WRITE) for key in (7, number)]
    assert [keys for keys, _ in table.updates] == [together, [7, BATCHES_PER_WRITE]]
    assert writer.counts().written == 2 * (BATCHES_PER_WRITE + 1)


def test_sending_never_waits_and_what_is_dropped_is_counted():
    table = Table()
    writer = PriorityWriter(table.update)
    for number in range(WAITING_BATCHES + 2):
        writer.send(np.array([number]), jax.numpy.ones((1, 1)))
    while writer.step(0.0):
        pass
    written = [key for keys, _ in table.updates for key in keys]
    assert written == list(range(2, WAITING_BATCHES + 2))
    assert writer.counts() == (WAITING_BATCHES, 0, 0, 2)


def test_a_waiting_writer_wakes_up():
    table = Table()
    writer = PriorityWriter(table.update)
    thread = threading.Thread(target=writer.step, args=(10 * LONG_S,))
    thread.start()
    for number in range(BATCHES_PER_WRITE):
        writer.send(np.array([number]), jax.numpy.ones((1, 1)))
    thread.join(LONG_S)
    assert table.updates == [(list(range(BATCHES_PER_WRITE)), [1.0] * BATCHES_PER_WRITE)]


class Update(NamedTuple):
    """What a learner made of one batch."""

    gradient: Gradient
    keys: np.ndarray
    priorities: jax.Array


def one_update(
    probabilities: list[float], exponent: float, rewards: dict[int, float] | None = None
) -> Update:
    """Of a batch drawn with these probabilities, with other rewards where `rewards` says so."""
    drawn = batch(BATCH, seed=4)
    for item, reward in (rewards or {}).items():
        drawn.steps.reward[item, 1] = reward
    info = SampleInfo(np.arange(100, 100 + BATCH), np.array(probabilities), np.full(BATCH, 50))
    config = LearnerConfig(batch_size=BATCH, prefetch_batches=0, importance_exponent=exponent)
    devices: list[Any] = jax.devices()[:1]
    pushed: list[Gradient] = []
    sent: list[tuple[np.ndarray, jax.Array]] = []
    prefetcher = Prefetcher(config, devices, lambda timeout_s: drawn._replace(info=info))
    learner = Learner(
        config,
        loss_fn,
        devices,
        prefetcher.next_batch,
        lambda: Snapshot(0, replicated(parameters(0)), replicated(parameters(1))),
        pushed.append,
        lambda keys, priorities: sent.append((keys, priorities)),
    )
    assert learner.step(0.0)
    ((keys, priorities),) = sent
    return Update(*pushed, keys, priorities)


PROBABILITIES = [0.01, 0.2, 0.05, 0.02, 0.1, 0.02, 0.3, 0.3]


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_priorities_are_of_the_unweighted_errors(exponent):
    _, keys, priorities = one_update(PROBABILITIES, exponent)
    _, _, td_errors = expected(parameters(0), parameters(1), steps(BATCH, 4))
    assert keys.tolist() == list(range(100, 100 + BATCH))
    np.testing.assert_allclose(priorities[0], np.abs(td_errors) + 1e-6, rtol=1e-5)


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_of_one_item_is_refused_and_the_others_get_their_priorities(reward):
    gradient, keys, priorities = one_update(PROBABILITIES, 1.0, {3: reward})
    assert not np.asarray(gradient.finite).any()
    table = Table()
    writer = PriorityWriter(table.update)
    writer.send(keys, priorities)
    assert writer.step(0.0)
    ((written, values),) = table.updates
    _, _, td_errors = expected(parameters(0), parameters(1), steps(BATCH, 4))
    assert written == [100, 101, 102, 104, 105, 106, 107]
    np.testing.assert_allclose(values, np.delete(np.abs(td_errors) + 1e-6, 3), rtol=1e-5)
    assert writer.counts() == (7, 0, 1, 0)


def test_a_learner_that_nobody_asked_sends_none():
    config = LearnerConfig(batch_size=BATCH, prefetch_batches=0)
    devices = jax.devices()[:1]
    prefetcher = Prefetcher(config, devices, lambda timeout_s: batch(BATCH))
    snapshot = Snapshot(0, replicated(parameters(0)), replicated(parameters(1)))
    learner = Learner(config, loss_fn, devices, prefetcher.next_batch, lambda: snapshot, lambda _: None)
    assert learner.step(0.0)
