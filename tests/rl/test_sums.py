"""Sums in stretches against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.rl.sums import total, total_of_squares


@pytest.mark.parametrize("shape", [(0,), (), (1,), (31,), (32,), (33,), (3, 32), (96, 7), (8, 4, 5, 5)])
def test_sums_are_of_every_element_once(shape):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    exact = array.astype(np.float64)
    np.testing.assert_allclose(total(array), exact.sum(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total_of_squares(array), np.square(exact).sum(), rtol=1e-5)


def test_half_precision_is_summed_in_single():
    assert total(np.full(64, 60_000, np.float16)) == 64 * np.float32(np.float16(60_000))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [5, 64, 70])
def test_one_element_that_is_not_finite_shows(bad, size):
    for place in range(size):
        array = np.ones(size, np.float32)
        array[place] = bad
        assert not np.isfinite(total(array))
        assert not np.isfinite(total_of_squares(array))
