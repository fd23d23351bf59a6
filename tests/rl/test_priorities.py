"""Priorities and importance weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.priorities import importance_weights, priorities, recent_td_errors


def test_a_priority_is_the_absolute_td_error_and_never_zero():
    errors = np.array([-2.0, 0.0, 0.5], np.float32)
    expected = np.array([2 + 1e-6, 1e-6, 0.5 + 1e-6], np.float32)
    np.testing.assert_array_equal(priorities(errors), expected)
    np.testing.assert_array_equal(priorities(jnp.asarray(errors)), expected)


def test_weights_count_the_table_and_are_largest_for_what_was_least_likely():
    weights = importance_weights(np.array([0.1, 0.4]), np.array([5, 5]), 0.5)
    raw = [(5 * 0.1) ** -0.5, (5 * 0.4) ** -0.5]
    assert raw == pytest.approx([1.41421, 0.70711], abs=1e-5)
    assert weights == pytest.approx([1, raw[1] / raw[0]])
    assert weights[1] == pytest.approx(0.5)
    assert weights.dtype == np.float32


def test_a_table_that_grew_between_two_draws_is_counted_as_it_was():
    assert importance_weights(np.array([0.1, 0.05]), np.array([10, 20]), 0.7).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("probabilities", "exponent"),
    [([0.1, 0.4], 0.0), ([0.2, 0.2], 0.0), ([0.2, 0.2], 0.4), ([0.2, 0.2], 1.0)],
)
def test_no_correction_and_uniform_draws_give_weights_of_one(probabilities, exponent):
    weights = importance_weights(np.array(probabilities), np.array([5, 5]), exponent)
    assert weights.tolist() == [1, 1]


def test_td_errors_of_every_number_of_steps():
    r = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, -1.0]], np.float32)
    d = np.array([[0.9, 1.0], [0.9, 0.5], [0.8, 0.0]], np.float32)
    q = np.array([[3.0, 0.0], [5.0, 0.25], [7.0, 0.0]], np.float32)
    errors = recent_td_errors(r, d, q, np.array([10.0, 99.0], np.float32))
    assert errors[:, 0] == pytest.approx(
        [
            4 + 0.8 * 10 - 7,
            2 + 0.9 * 4 + 0.9 * 0.8 * 10 - 5,
            1 + 0.9 * 2 + 0.9**2 * 4 + 0.9**2 * 0.8 * 10 - 3,
        ]
    )
    assert errors[:, 1] == pytest.approx([-1, 0.5 * -1 - 0.25, 1.0 * 0.5 * -1])
