"""Value rescaling and its inverse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.rescaling import IDENTITY, rescaling

EPSILON = 1e-3
PAIR = rescaling(EPSILON)
MAGNITUDES = np.logspace(-3, 6, 200)
BOTH_SIGNS = np.concatenate([-MAGNITUDES, MAGNITUDES]).astype(np.float32)


def as_published(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + EPSILON * x


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_it_is_the_published_function(array):
    got = PAIR.apply(array(BOTH_SIGNS))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, as_published(BOTH_SIGNS), rtol=1e-6)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_one_after_the_other_they_change_nothing(array):
    x = array(BOTH_SIGNS)
    for there, back in (PAIR, reversed(PAIR)):
        got = back(there(x))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, BOTH_SIGNS, rtol=1e-5)


def test_jitted_as_well():
    got = jax.jit(lambda x: PAIR.invert(PAIR.apply(x)))(BOTH_SIGNS)
    np.testing.assert_allclose(got, BOTH_SIGNS, rtol=1e-5)


def test_zero_stays_zero_with_a_finite_gradient():
    for function, slope in ((PAIR.apply, 0.5 + EPSILON), (PAIR.invert, 2 / (1 + 2 * EPSILON))):
        value, gradient = jax.value_and_grad(function)(jnp.float32(0))
        assert value == 0
        assert gradient == pytest.approx(slope, rel=1e-5)


def test_none_at_all():
    assert rescaling(0.0) is IDENTITY
    assert [function(BOTH_SIGNS) is BOTH_SIGNS for function in IDENTITY] == [True, True]


def test_a_negative_epsilon_is_refused():
    with pytest.raises(ValueError, match="negative"):
        rescaling(-1e-3)
