from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.td_errors import double_q_learning, huber_loss, q_learning

Q_TM1 = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
A_TM1 = jnp.array([2, 0])
R_T = jnp.array([0.5, -1.0])
DISCOUNT_T = jnp.array([0.9, 0.0])
Q_T = jnp.array([[7.0, 11.0, 9.0], [1.0, 2.0, 30.0]])
SELECTOR = jnp.array([[8.0, 1.0, 2.0], [0.0, 3.0, 1.0]])


def test_q_learning_takes_the_best_target_value(maybe_jit):
    got = maybe_jit(q_learning)(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T)
    np.testing.assert_allclose(got, [0.5 + 0.9 * 11 - 3, -1 - 4], rtol=1e-6)


def test_double_q_learning_takes_the_target_value_of_the_online_choice(maybe_jit):
    got = maybe_jit(double_q_learning)(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, SELECTOR)
    np.testing.assert_allclose(got, [0.5 + 0.9 * 7 - 3, -1 - 4], rtol=1e-6)


def test_both_agree_with_rlax():
    rlax = pytest.importorskip("rlax")
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    q_tm1, q_t, selector = (jax.random.normal(key, (64, 6)) for key in keys[:3])
    a_tm1 = jax.random.randint(keys[3], (64,), 0, 6)
    r_t = jax.random.normal(keys[4], (64,))
    discount_t = jax.random.uniform(keys[5], (64,))
    np.testing.assert_allclose(
        q_learning(q_tm1, a_tm1, r_t, discount_t, q_t),
        jax.vmap(rlax.q_learning)(q_tm1, a_tm1, r_t, discount_t, q_t),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    np.testing.assert_allclose(
        double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, selector),
        jax.vmap(rlax.double_q_learning)(q_tm1, a_tm1, r_t, discount_t, q_t, selector),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    td_errors = 3 * r_t
    np.testing.assert_allclose(
        huber_loss(td_errors, 1.0), rlax.huber_loss(td_errors, 1.0), rtol=1e-5, atol=1e-6
    )


def test_no_gradient_reaches_the_target(maybe_jit):
    def loss(q_tm1, q_t, selector):
        plain = q_learning(q_tm1, A_TM1, R_T, DISCOUNT_T, q_t)
        double = double_q_learning(q_tm1, A_TM1, R_T, DISCOUNT_T, q_t, selector)
        return jnp.sum(jnp.square(plain)) + jnp.sum(jnp.square(double))

    online, target, selector = maybe_jit(jax.grad(loss, argnums=(0, 1, 2)))(Q_TM1, Q_T, SELECTOR)
    np.testing.assert_array_equal(target, jnp.zeros_like(Q_T))
    np.testing.assert_array_equal(selector, jnp.zeros_like(SELECTOR))
    expected = np.zeros((2, 3))
    expected[0, 2] = -2 * (0.5 + 0.9 * 11 - 3) - 2 * (0.5 + 0.9 * 7 - 3)
    expected[1, 0] = -2 * (-1 - 4) * 2
    np.testing.assert_allclose(online, expected, rtol=1e-5)


def test_leading_axes_are_free(maybe_jit):
    got = maybe_jit(q_learning)(Q_TM1[None], A_TM1[None], R_T[None], DISCOUNT_T[None], Q_T[None])
    np.testing.assert_array_equal(got[0], q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T))


@pytest.mark.parametrize(
    ("bound", "expected", "expected_gradient"),
    [
        (1.0, [3 - 0.5, 0.5, 0.5 * 0.25, 0, 10 - 0.5], [-1, -1, 0.5, 0, 1]),
        (2.0, [2 * 3 - 0.5 * 4, 0.5, 0.5 * 0.25, 0, 2 * 10 - 0.5 * 4], [-2, -1, 0.5, 0, 2]),
        (0.0, [0.5 * 9, 0.5, 0.5 * 0.25, 0, 0.5 * 100], [-3, -1, 0.5, 0, 10]),
    ],
)
def test_huber_loss_and_its_gradient(maybe_jit, bound, expected, expected_gradient):
    td_errors = jnp.array([-3.0, -1.0, 0.5, 0.0, 10.0])
    np.testing.assert_allclose(maybe_jit(lambda td: huber_loss(td, bound))(td_errors), expected, rtol=1e-6)
    gradient = maybe_jit(jax.grad(lambda td: jnp.sum(huber_loss(td, bound))))(td_errors)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)


def test_a_loss_that_is_not_finite_shows():
    assert np.isnan(huber_loss(jnp.array(jnp.nan), 1.0))
    with pytest.raises(ValueError, match="-1"):
        huber_loss(jnp.array(1.0), -1.0)
