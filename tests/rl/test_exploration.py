from __future__ import annotations

import itertools

import pytest

from gorila_jax.rl.exploration import ladder, linear_schedule


def test_the_ladder_of_eight():
    got = [ladder(index, 8) for index in range(8)]
    assert got == pytest.approx([0.4 ** (1 + index) for index in range(8)])
    assert got == pytest.approx([0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655], rel=1e-3)


def test_the_ladder_of_many_spans_the_same_range():
    rungs = [ladder(index, 360) for index in range(360)]
    assert rungs[0] == pytest.approx(0.4)
    assert rungs[-1] == pytest.approx(0.4**8)
    assert all(upper > lower for upper, lower in itertools.pairwise(rungs))


def test_a_ladder_of_one():
    assert ladder(0, 1) == pytest.approx(0.4)


@pytest.mark.parametrize(("index", "number"), [(0, 0), (8, 8), (-1, 8)])
def test_an_environment_that_there_is_not(index, number):
    with pytest.raises(ValueError, match=str(index)):
        ladder(index, number)


def test_the_schedule_falls_in_a_straight_line_and_stays():
    got = [linear_schedule(count, 1.0, 0.1, 1_000) for count in (0, 250, 500, 1_000, 10**9)]
    assert got == pytest.approx([1.0, 1 - 0.9 / 4, 1 - 0.9 / 2, 0.1, 0.1])
    assert linear_schedule(0, 1.0, 0.1, 0) == 0.1
    with pytest.raises(ValueError, match="-1"):
        linear_schedule(-1, 1.0, 0.1, 1_000)
