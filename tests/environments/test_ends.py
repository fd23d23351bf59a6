import numpy as np
import pytest

from gorila_jax.environments.ends import end_discounts, label_ends
from gorila_jax.types import End


@pytest.mark.parametrize(
    ("game_over", "time_limit", "life_loss", "expected"),
    [
        (False, False, False, End.NONE),
        (True, False, False, End.GAME_OVER),
        (False, True, False, End.TIME_LIMIT),
        (False, False, True, End.LIFE_LOSS),
        (True, True, False, End.GAME_OVER),
        (True, False, True, End.GAME_OVER),
        (False, True, True, End.TIME_LIMIT),
        (True, True, True, End.GAME_OVER),
    ],
)
def test_every_combination_of_flags_has_one_label(game_over, time_limit, life_loss, expected):
    end = label_ends(*(np.array([False, flag]) for flag in (game_over, time_limit, life_loss)))
    assert end.dtype == np.uint8
    assert end.tolist() == [End.NONE, expected]


def test_only_a_time_limit_keeps_the_discount():
    ends = np.array([End.NONE, End.GAME_OVER, End.TIME_LIMIT, End.LIFE_LOSS], np.uint8)
    discount = end_discounts(ends, 0.9)
    assert discount.dtype == np.float32
    np.testing.assert_array_equal(discount, np.float32([0.9, 0, 0.9, 0]))
