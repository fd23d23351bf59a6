from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.gradients import LearnerMetrics, UpdateOutput, check_batch_size, make_gradient_fn
from gorila_jax.rl import guards
from gorila_jax.rl.td_errors import huber_loss
from gorila_jax.types import ConfigError, LossOutput, Step
from tests.learner.problem import expected, loss_fn, no_state, parameters, replicated, shares, steps

BATCH = 8


def compute(config: LearnerConfig, batch: Step, weights=None, guard=None) -> UpdateOutput:
    """One update on one device, of parameters(0) against target parameters(1)."""
    weights = np.ones(BATCH, np.float32) if weights is None else weights
    guard = guards.initial_guard_state() if guard is None else guard
    update = make_gradient_fn(loss_fn, config, jax.devices()[:1])
    online, target = replicated(parameters(0)), replicated(parameters(1))
    return update(online, target, replicated(guard), *shares((batch, no_state(BATCH), weights), 1))


def metrics_of(output: UpdateOutput) -> LearnerMetrics:
    return LearnerMetrics(*np.asarray(output.metrics)[0].tolist())


def test_gradient_and_metrics_are_those_worked_out_by_hand():
    loss, gradient, td_errors = expected(parameters(0), parameters(1), steps(BATCH))
    output = compute(LearnerConfig(batch_size=BATCH), steps(BATCH))
    np.testing.assert_allclose(output.gradients["w"][0, 0], gradient, rtol=1e-5)
    assert metrics_of(output) == pytest.approx(
        (loss, np.abs(td_errors).mean(), np.linalg.norm(gradient), 1.0), rel=1e-5
    )
    assert output.finite.tolist() == [True]
    assert output.outlier.tolist() == [False]
    assert output.guard.losses.tolist() == [1]
    np.testing.assert_allclose(output.guard.mean, [loss], rtol=1e-5)


def test_weights_weigh_losses_but_not_td_errors():
    weights = np.linspace(0, 1, BATCH).astype(np.float32)
    _, _, td_errors = expected(parameters(0), parameters(1), steps(BATCH))
    got = metrics_of(compute(LearnerConfig(batch_size=BATCH), steps(BATCH), weights))
    assert got.loss == pytest.approx(np.mean(weights * 0.5 * td_errors**2), rel=1e-5)
    assert got.mean_abs_td_error == pytest.approx(np.abs(td_errors).mean(), rel=1e-5)


def test_the_global_norm_is_clipped_and_reported_unclipped():
    _, gradient, _ = expected(parameters(0), parameters(1), steps(BATCH))
    norm = np.linalg.norm(gradient)
    for bound, scale in ((norm / 4, 1 / 4), (norm * 4, 1.0), (0.0, 1.0)):
        output = compute(LearnerConfig(batch_size=BATCH, max_gradient_norm=float(bound)), steps(BATCH))
        np.testing.assert_allclose(output.gradients["w"][0, 0], scale * gradient, rtol=1e-5)
        assert metrics_of(output).gradient_norm == pytest.approx(norm, rel=1e-5)


def test_a_gradient_of_zero_is_clipped_to_zero():
    config = LearnerConfig(batch_size=BATCH, max_gradient_norm=1.0)
    output = compute(config, steps(BATCH), weights=np.zeros(BATCH, np.float32))
    np.testing.assert_array_equal(output.gradients["w"], np.zeros((1, 1, 2)))
    assert output.finite.tolist() == [True]


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e30])
def test_what_is_not_finite_is_flagged_and_never_taken_into_the_statistics(reward):
    batch = steps(BATCH)
    batch.reward[3, 1] = reward
    guard = guards.GuardState(jnp.int32(5_000), jnp.float32(1.0), jnp.float32(0.25))
    output = compute(LearnerConfig(batch_size=BATCH, outlier_deviations=3.0), batch, guard=guard)
    assert output.finite.tolist() == [False]
    assert output.outlier.tolist() == [False]
    assert metrics_of(output).finite == 0
    for before, after in zip(guard, output.guard, strict=True):
        np.testing.assert_array_equal(before, after[0])


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda w: huber_loss(jnp.inf - w, 1.0), "loss"),  # its gradient is clipped, and so finite
        (lambda w: jnp.sqrt(0.0 * w), "gradient"),
    ],
)
def test_either_of_loss_and_gradient_is_enough(losses, said):
    def loss_fn(parameters, target, steps, state):
        ones = jnp.ones(steps.reward.shape[0])
        return LossOutput(ones * losses(parameters["w"][0, 0]), ones, ones)

    update = make_gradient_fn(loss_fn, LearnerConfig(batch_size=BATCH), jax.devices()[:1])
    online, guard = replicated(parameters(0)), replicated(guards.initial_guard_state())
    batch = shares((steps(BATCH), no_state(BATCH), np.ones(BATCH, np.float32)), 1)
    output = update(online, online, guard, *batch)
    got = metrics_of(output)
    assert np.isfinite(got.loss) == (said != "loss")
    assert np.isfinite(got.gradient_norm) == (said != "gradient")
    assert output.finite.tolist() == [False]


def test_an_outlier_is_flagged_and_taken_into_the_statistics():
    guard = guards.GuardState(jnp.int32(1_000), jnp.float32(0.01), jnp.float32(1e-6))
    for deviations, outlier in ((3.0, True), (0.0, False)):
        config = LearnerConfig(batch_size=BATCH, outlier_deviations=deviations)
        output = compute(config, steps(BATCH), guard=guard)
        assert output.outlier.tolist() == [outlier]
        assert output.guard.losses.tolist() == [1_001]
        assert output.guard.mean[0] > 0.01
    late = LearnerConfig(batch_size=BATCH, outlier_deviations=3.0, outlier_warmup_losses=1_001)
    assert compute(late, steps(BATCH), guard=guard).outlier.tolist() == [False]


def test_no_gradient_reaches_the_target():
    def through_target(target):
        output = loss_fn(parameters(0), target, steps(BATCH), no_state(BATCH))
        return jnp.mean(output.losses)

    np.testing.assert_array_equal(jax.grad(through_target)(parameters(1))["w"], np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("batch_size", "num_devices", "said"),
    [(33, 4, "such as 32, 36, 40"), (3, 4, "such as 4, 8"), (0, 1, "such as 1, 2")],
)
def test_a_batch_that_devices_cannot_share_is_refused_with_sizes_that_work(batch_size, num_devices, said):
    with pytest.raises(ConfigError, match=said):
        check_batch_size(batch_size, num_devices)
    check_batch_size(32, 4)


def test_several_devices_are_as_one():
    """In a process of its own, which has four devices."""
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-m", "tests.learner.four_devices"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("four devices are as one")
