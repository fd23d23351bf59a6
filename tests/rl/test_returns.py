from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.returns import clip_rewards, n_step_return

GAMMA = 0.99


def test_sum_and_discount_are_the_arithmetic(maybe_jit):
    return_t, discount_t = maybe_jit(n_step_return)(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.9, 0.8, 0.7]))
    np.testing.assert_allclose(return_t, 1 + 0.9 * 2 + 0.9 * 0.8 * 3, rtol=1e-6)
    np.testing.assert_allclose(discount_t, 0.9 * 0.8 * 0.7, rtol=1e-6)


def test_one_step_is_reward_and_discount_themselves(maybe_jit):
    r_t, discount_t = jnp.array([[1.5], [-2.0]]), jnp.array([[0.99], [0.0]])
    return_t, product = maybe_jit(n_step_return)(r_t, discount_t)
    np.testing.assert_array_equal(return_t, [1.5, -2.0])
    np.testing.assert_array_equal(product, np.array([0.99, 0.0], np.float32))


@pytest.mark.parametrize(
    ("last_discount", "expected_discounts"),
    [
        (GAMMA, [GAMMA**3, GAMMA**3, GAMMA**3, GAMMA**2, GAMMA]),  # time limit
        (0.0, [GAMMA**3, GAMMA**3, 0.0, 0.0, 0.0]),  # game over
    ],
)
def test_items_at_the_end_of_an_episode_discount_only_their_real_steps(
    maybe_jit, last_discount, expected_discounts
):
    """Five steps of reward 1 and three-step items; what lies beyond the end has reward 0 and discount 1."""
    rewards = np.array([1, 1, 1, 1, 1, 0, 0], np.float32)
    discounts = np.array([GAMMA, GAMMA, GAMMA, GAMMA, last_discount, 1, 1], np.float32)
    windows = np.arange(5)[:, None] + np.arange(3)
    return_t, discount_t = maybe_jit(n_step_return)(rewards[windows], discounts[windows])
    expected = [1 + GAMMA + GAMMA**2, 1 + GAMMA + GAMMA**2, 1 + GAMMA + GAMMA**2, 1 + GAMMA, 1]
    np.testing.assert_allclose(return_t, expected, rtol=1e-6)
    np.testing.assert_allclose(discount_t, expected_discounts, rtol=1e-6)


def test_no_reward_after_a_terminal_step_counts(maybe_jit):
    return_t, discount_t = maybe_jit(n_step_return)(jnp.array([1.0, 2.0, 100.0]), jnp.array([0.9, 0.0, 0.9]))
    np.testing.assert_allclose(return_t, 1 + 0.9 * 2, rtol=1e-6)
    assert discount_t == 0


def test_rewards_are_clipped_one_by_one(maybe_jit):
    rewards = jnp.array([-10.0, -0.5, 0.0, 0.5, 10.0])
    np.testing.assert_array_equal(
        maybe_jit(lambda r_t: clip_rewards(r_t, 1.0))(rewards), [-1.0, -0.5, 0.0, 0.5, 1.0]
    )
    np.testing.assert_array_equal(maybe_jit(lambda r_t: clip_rewards(r_t, 0.0))(rewards), rewards)


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="-1"):
        clip_rewards(jnp.zeros(2), -1.0)
