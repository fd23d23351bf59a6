"""From rows to sequences, and the targets of their steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.priorities import sequence_priorities
from gorila_jax.rl.rescaling import IDENTITY, rescaling
from gorila_jax.rl.sequences import sequence_td_errors, sequences
from gorila_jax.rl.windows import Layout, transition_layout, transitions
from gorila_jax.types import Step

LAYOUT = Layout(frame_stack=2, burn_in_steps=2, length_steps=3, stride_steps=2, n_steps=2, stores_state=True)


def rows(numbers, valid) -> Step:
    """One item [1, W]: observations are these numbers, and the other fields tell them too."""
    numbers, valid = np.array([numbers]), np.array([valid], bool)
    return Step(
        observation=jnp.array(numbers, jnp.int32),
        action=jnp.array(np.where(valid, numbers, 0), jnp.int32),
        reward=jnp.array(np.where(valid, numbers / 10, 0), jnp.float32),
        discount=jnp.array(np.where(valid, 0.5, 1), jnp.float32),
        valid=jnp.array(valid),
    )


def test_a_window_spans_the_stack_the_burn_in_the_trained_steps_and_their_targets():
    assert LAYOUT.window_steps == 1 + 2 + 3 + 2
    assert transition_layout(4, 3).window_steps == 4 + 3


def test_in_the_middle_of_an_episode():
    got = sequences(rows(range(10, 18), [True] * 8), LAYOUT)
    assert got.inputs.stack[:, 0].tolist() == [[number, number + 1] for number in range(10, 17)]
    # What a network sees beside an observation led to it; what is learned of it came after.
    assert got.inputs.last_action[:, 0].tolist() == list(range(11, 18))
    np.testing.assert_allclose(got.inputs.last_reward[:, 0], np.arange(11, 18) / 10, rtol=1e-6)
    assert got.a_tm1[:, 0].tolist() == [14, 15, 16]
    np.testing.assert_allclose(got.r_t[:, 0], [1.4, 1.5, 1.6, 1.7], rtol=1e-6)
    assert got.valid_t.all()
    assert not got.inputs.first.any()


def test_at_an_episode_s_start_the_padding_comes_before_the_first_observation():
    got = sequences(rows([10, 10, 10, 10, 11, 12, 13, 14], [False] * 4 + [True] * 4), LAYOUT)
    assert got.inputs.first[:, 0].tolist() == [False, False, True, False, False, False, False]
    assert got.inputs.stack[2, 0].tolist() == [10, 10]
    assert got.a_tm1[:, 0].tolist() == [11, 12, 13]
    assert got.valid_t.all()


def test_an_episode_may_begin_within_the_burn_in():
    got = sequences(rows([10, 10, 10, 11, 12, 13, 14, 15], [False] * 3 + [True] * 5), LAYOUT)
    assert got.inputs.first[:, 0].tolist() == [False, True, False, False, False, False, False]


def test_nothing_begins_where_an_episode_has_ended():
    got = sequences(rows(range(10, 18), [True] * 5 + [False] * 3), LAYOUT)
    assert not got.inputs.first.any()
    assert got.valid_t[:, 0].tolist() == [True, False, False, False]


def test_another_window_is_refused():
    with pytest.raises(ValueError, match="7 rows"):
        sequences(rows(range(7), [True] * 7), LAYOUT)


def test_a_sequence_of_one_step_is_a_transition():
    layout = transition_layout(2, 1)
    item = rows([10, 11, 12], [True, True, True])
    got, transition = sequences(item, layout), transitions(item, 2)
    np.testing.assert_array_equal(got.inputs.stack[0], transition.stack_tm1)
    np.testing.assert_array_equal(got.inputs.stack[1], transition.stack_t)
    assert (got.a_tm1[0], got.r_t[0]) == (transition.a_tm1, transition.r_t)


# Targets. Two steps of reward; three trained steps; the numbers differ in every place.

REWARDS = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
VALUES = np.array([100.0, 200.0, 300.0, 400.0, 500.0], np.float32)
TAKEN = np.array([7.0, 11.0, 13.0], np.float32)
GAMMA = 0.9


def errors(real: int, last_discount: float = GAMMA, pair=IDENTITY, array=np.asarray, jit=False):
    """Of the first `real` steps of an episode's end, whose last discount is this."""
    discounts = np.full(4, GAMMA, np.float32)
    discounts[real - 1] = last_discount
    valid = np.arange(4) < real
    arguments = [array(x) for x in (TAKEN, REWARDS, discounts, valid, VALUES)]
    compute = jax.jit(sequence_td_errors, static_argnums=5) if jit else sequence_td_errors
    return np.asarray(compute(*arguments, pair))


WAYS = pytest.mark.parametrize(
    "way", [{}, {"array": jnp.asarray}, {"array": jnp.asarray, "jit": True}], ids=["numpy", "jax", "jitted"]
)


@WAYS
def test_targets_of_two_steps(way):
    expected = [
        1 + 0.9 * 2 + 0.9**2 * 300 - 7,
        2 + 0.9 * 4 + 0.9**2 * 400 - 11,
        4 + 0.9 * 8 + 0.9**2 * 500 - 13,
    ]
    got = errors(4, **way)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@WAYS
def test_a_time_limit_bootstraps_from_the_last_real_observation(way):
    expected = [1 + 0.9 * 2 + 0.9**2 * 300 - 7, 2 + 0.9 * 4 + 0.9**2 * 400 - 11, 4 + 0.9 * 400 - 13]
    np.testing.assert_allclose(errors(3, **way), expected, rtol=1e-6)


@WAYS
def test_a_game_over_bootstraps_from_nothing_and_counts_itself(way):
    np.testing.assert_allclose(errors(2, 0.0, **way), [1 + 0.9 * 2 - 7, 2 - 11, 0], rtol=1e-6)


def test_a_reward_of_2_and_a_value_of_3_five_steps_later():
    """By hand, with 0.99 and epsilon 1e-3: h(2 + 0.99^5 h^-1(3)) = 3.15763."""
    rewards, discounts = np.array([2, 0, 0, 0, 0], np.float32), np.full(5, 0.99, np.float32)
    values, taken = np.array([9, 9, 9, 9, 9, 3], np.float32), np.zeros(1, np.float32)
    got = sequence_td_errors(taken, rewards, discounts, np.ones(5, bool), values, rescaling(1e-3))
    assert got == pytest.approx(3.15763, abs=1e-5)


@WAYS
def test_values_are_rescaled_back_before_the_sum_and_targets_after_it(way):
    pair = rescaling(1e-3)
    expected = [
        pair.apply(1 + 0.9 * 2 + 0.9**2 * pair.invert(300.0)) - 7,
        pair.apply(2 + 0.9 * 4 + 0.9**2 * pair.invert(400.0)) - 11,
        pair.apply(4 + 0.9 * pair.invert(400.0)) - 13,
    ]
    np.testing.assert_allclose(errors(3, pair=pair, **way), expected, rtol=1e-5)


def test_what_stands_in_padding_changes_no_bit():
    clean = errors(2)
    for name in ("REWARDS", "VALUES", "TAKEN"):
        array = globals()[name]
        kept = array.copy()
        try:
            array[3 if name == "VALUES" else 2 :] = 1e9
            np.testing.assert_array_equal(errors(2), clean)
        finally:
            array[:] = kept


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_priorities_mix_the_largest_and_the_mean_of_real_steps(array):
    td_errors = array(np.array([[1.0, -2.0], [-3.0, 0.0], [0.0, 0.0]], np.float32))
    valid = array(np.array([[True, True], [True, False], [False, False]]))
    got = sequence_priorities(td_errors, valid, 0.9)
    np.testing.assert_allclose(got, [0.9 * 3 + 0.1 * 2, 2.0], rtol=1e-5)
    np.testing.assert_allclose(sequence_priorities(td_errors, valid, 0.0), [2.0, 2.0], rtol=1e-5)


def test_a_sequence_of_padding_alone_has_the_least_priority():
    got = sequence_priorities(np.zeros(3, np.float32), np.zeros(3, bool), 0.9)
    assert got == pytest.approx(1e-6)
