from __future__ import annotations

import logging
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher
from gorila_jax.types import Batch, ConfigError, GorilaError, Gradient, Snapshot
from tests.learner.problem import batch, expected, loss_fn, parameters, replicated, steps

BATCH = 8


class Bench:
    """A learner between a script of batches and a server that only keeps what it is given."""

    def __init__(self, config: LearnerConfig, batches: list[Batch | None]):
        self.batches: Iterator[Batch | None] = iter(batches)
        self.pushed: list[Gradient] = []
        self.pulls = 0
        devices = jax.devices()[:1]
        prefetcher = Prefetcher(config, devices, lambda timeout_s: next(self.batches))
        self.learner = Learner(config, loss_fn, devices, prefetcher.next_batch, self.pull, self.pushed.append)

    def pull(self) -> Snapshot:
        self.pulls += 1
        return Snapshot(1_000 + self.pulls, replicated(parameters(0)), replicated(parameters(1)))


def config(**settings) -> LearnerConfig:
    return LearnerConfig(batch_size=BATCH, prefetch_batches=0, **settings)


def poisoned() -> Batch:
    return batch(BATCH, reward=np.nan)


def test_a_step_pushes_one_gradient_with_the_version_it_came_from():
    bench = Bench(config(), [batch(BATCH, seed) for seed in range(3)])
    for update in range(3):
        assert bench.learner.step(1.0)
        gradient = bench.pushed[-1]
        assert len(bench.pushed) == update + 1
        assert gradient.version == 1_001 + update
        _, by_hand, _ = expected(parameters(0), parameters(1), steps(BATCH, update))
        np.testing.assert_allclose(gradient.gradients["w"][0, 0], by_hand, rtol=1e-5)
        assert gradient.finite.tolist() == [True]
        assert gradient.outlier.tolist() == [False]
    assert (bench.learner.updates, bench.learner.samples) == (3, 3 * BATCH)


def test_without_a_batch_nothing_is_pulled_pushed_or_counted():
    bench = Bench(config(), [None, batch(BATCH)])
    assert not bench.learner.step(0.0)
    assert (bench.pulls, bench.pushed, bench.learner.updates) == (0, [], 0)
    assert bench.learner.step(0.0)
    assert (bench.pulls, len(bench.pushed), bench.learner.updates) == (1, 1, 1)


def test_flags_and_numbers_are_read_one_update_late():
    bench = Bench(config(), [poisoned(), batch(BATCH), batch(BATCH, 1)])
    bench.learner.step(0.0)
    assert bench.learner.metrics() == {}
    bench.learner.step(0.0)
    assert bench.learner.metrics() == {}  # the only one read was not finite
    bench.learner.step(0.0)
    loss, gradient, td_errors = expected(parameters(0), parameters(1), steps(BATCH))
    got = bench.learner.metrics()
    assert got["loss"] == pytest.approx(loss, rel=1e-5)
    assert got["mean_abs_td_error"] == pytest.approx(np.abs(td_errors).mean(), rel=1e-5)
    assert got["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


def test_metrics_are_means_since_the_call_before():
    bench = Bench(config(), [batch(BATCH, seed) for seed in range(5)])
    losses = [expected(parameters(0), parameters(1), steps(BATCH, seed))[0] for seed in range(5)]
    for _ in range(3):
        bench.learner.step(0.0)
    assert bench.learner.metrics()["loss"] == pytest.approx(np.mean(losses[:2]), rel=1e-5)
    assert bench.learner.metrics() == {}
    for _ in range(2):
        bench.learner.step(0.0)
    bench.learner.finish()
    got = bench.learner.metrics()
    assert got["loss"] == pytest.approx(np.mean(losses[2:]), rel=1e-5)
    assert (bench.learner.updates, bench.learner.samples) == (5, 5 * BATCH)
    bench.learner.finish()  # nothing is left to read
    assert bench.learner.metrics() == {}


def test_updates_that_stay_not_finite_end_the_run():
    bench = Bench(config(max_nonfinite_updates=2), [poisoned()] * 4)
    for _ in range(3):
        bench.learner.step(0.0)
    with pytest.raises(GorilaError, match=r"not finite in 3 updates in a row.*max_nonfinite_updates=2"):
        bench.learner.step(0.0)


def test_the_last_update_counts_too():
    bench = Bench(config(max_nonfinite_updates=0), [poisoned()])
    bench.learner.step(0.0)
    with pytest.raises(GorilaError, match="not finite in 1 updates"):
        bench.learner.finish()


def test_a_finite_update_between_lets_the_run_go_on():
    batches = [poisoned(), poisoned(), batch(BATCH)] * 3
    bench = Bench(config(max_nonfinite_updates=2), batches)
    for _ in batches:
        assert bench.learner.step(0.0)
    bench.learner.finish()
    assert [bool(gradient.finite[0]) for gradient in bench.pushed] == [False, False, True] * 3


def guard_settings() -> LearnerConfig:
    return config(outlier_deviations=3.0, outlier_warmup_losses=5)


def calm_then_spike() -> list[Batch]:
    return [batch(BATCH, seed % 2) for seed in range(6)] + [batch(BATCH, reward=100.0)]


def test_outliers_are_pushed_with_their_flag():
    batches = calm_then_spike()
    bench = Bench(guard_settings(), batches)
    for _ in batches:
        bench.learner.step(0.0)
    bench.learner.finish()
    assert [bool(gradient.outlier[0]) for gradient in bench.pushed] == [False] * 6 + [True]


def test_a_restored_learner_goes_on_with_guard_and_counters():
    *calm, spike = calm_then_spike()
    before = Bench(guard_settings(), calm)
    for _ in calm:
        before.learner.step(0.0)
    before.learner.finish()
    state = before.learner.state()
    for value in state["guard"].values():
        assert isinstance(value, np.ndarray)
        assert value.shape == ()

    after = Bench(guard_settings(), [spike])
    after.learner.restore(state)
    assert after.learner.state() == state
    after.learner.step(0.0)
    assert after.pushed[0].outlier.tolist() == [True]  # a fresh guard would still be warming up
    assert (after.learner.updates, after.learner.samples) == (7, 7 * BATCH)


def test_later_updates_compile_nothing(caplog):
    bench = Bench(config(), [batch(BATCH, seed) for seed in range(4)])
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        bench.learner.step(0.0)
        assert any("ompil" in record.getMessage() for record in caplog.records)
        bench.learner.step(0.0)
        caplog.clear()
        for _ in range(2):
            bench.learner.step(0.0)
        bench.learner.metrics()
    assert [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()] == []


def test_devices_that_cannot_share_the_batch_are_refused():
    devices = jax.devices()[:1] * 3
    with pytest.raises(ConfigError, match="3 devices"):
        Learner(config(), loss_fn, devices, lambda timeout_s: None, Snapshot, print)
