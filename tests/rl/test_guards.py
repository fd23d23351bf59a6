from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.guards import GuardState, initial_guard_state, is_outlier, observe_loss


def observe_all(losses, state: GuardState | None = None) -> GuardState:
    """The state after many losses, in one compiled loop."""
    state = initial_guard_state() if state is None else state
    return jax.jit(lambda s, x: jax.lax.scan(lambda s, loss: (observe_loss(s, loss), None), s, x)[0])(
        state, jnp.asarray(losses, jnp.float32)
    )


def test_statistics_are_those_of_the_absolute_losses(maybe_jit):
    state = initial_guard_state()
    for loss in (1.0, -3.0, 5.0):
        state = maybe_jit(observe_loss)(state, jnp.float32(loss))
    assert state.losses == 3
    np.testing.assert_allclose(state.mean, (1 + 3 + 5) / 3, rtol=1e-6)
    np.testing.assert_allclose(state.variance, ((1 - 3) ** 2 + (3 - 3) ** 2 + (5 - 3) ** 2) / 3, rtol=1e-6)


def test_float32_does_not_cancel():
    """The deviation is a ten-thousandth of the mean: a sum of squares would have lost it."""
    losses = 1_000 + np.random.default_rng(0).normal(0, 0.1, 20_000)
    state = observe_all(losses)
    np.testing.assert_allclose(state.mean, losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(state.variance), losses.std(), rtol=0.02)


def test_statistics_stay_alive_after_very_many_losses():
    """After 100 million losses a new level is still taken in, not lost to rounding."""
    old = GuardState(jnp.int32(10**8), jnp.float32(1.0), jnp.float32(0.01))
    state = observe_all(np.full(200_000, 1.5), old)
    assert state.losses == 10**8 + 200_000
    assert 1.05 < state.mean < 1.15
    assert state.variance > 0.03


def test_the_threshold_is_mean_plus_k_deviations(maybe_jit):
    state = GuardState(jnp.int32(1_000), jnp.float32(2.0), jnp.float32(0.25))
    judge = maybe_jit(lambda loss: is_outlier(state, loss, 4.0, 1_000))
    assert not judge(jnp.float32(2 + 4 * 0.5))
    assert judge(jnp.float32(2 + 4 * 0.5 + 0.01))
    assert judge(jnp.float32(-(2 + 4 * 0.5 + 0.01)))
    assert not judge(jnp.float32(0.0))


def test_nothing_is_an_outlier_during_the_warm_up():
    state = GuardState(jnp.int32(999), jnp.float32(1.0), jnp.float32(0.01))
    assert not is_outlier(state, jnp.float32(50.0), 3.0, 1_000)
    assert is_outlier(observe_loss(state, jnp.float32(1.0)), jnp.float32(50.0), 3.0, 1_000)
    assert not is_outlier(initial_guard_state(), jnp.float32(50.0), 3.0, 0)


def test_no_deviations_turn_it_off(maybe_jit):
    state = GuardState(jnp.int32(10_000), jnp.float32(1.0), jnp.float32(0.01))
    assert not maybe_jit(lambda loss: is_outlier(state, loss, 0.0, 1_000))(jnp.float32(1e6))


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_neither_taken_in_nor_an_outlier(maybe_jit, loss):
    state = observe_all([1.0, 2.0, 3.0])
    after = maybe_jit(observe_loss)(state, jnp.float32(loss))
    for before_value, after_value in zip(state, after, strict=True):
        np.testing.assert_array_equal(before_value, after_value)
    assert not is_outlier(state, jnp.float32(loss), 3.0, 2)


def test_dropped_losses_count_so_a_new_regime_does_not_block_for_ever(maybe_jit):
    """Losses rise a hundredfold and stay there: first refused, soon accepted, a spike still refused."""

    def step(state, loss):
        return observe_loss(state, loss), is_outlier(state, loss, 3.0, 100)

    random = np.random.default_rng(0)
    run = maybe_jit(lambda state, losses: jax.lax.scan(step, state, losses))
    state, refused = run(initial_guard_state(), jnp.asarray(random.normal(1.0, 0.1, 1_000), jnp.float32))
    assert refused.mean() < 0.02
    state, refused = run(state, jnp.asarray(random.normal(100.0, 10.0, 1_000), jnp.float32))
    assert refused[0]
    assert 20 < refused.sum() < 400
    assert not refused[400:].any()
    assert is_outlier(state, jnp.float32(1_000.0), 3.0, 100)
