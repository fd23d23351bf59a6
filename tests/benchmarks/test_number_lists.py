"""Lists of whole numbers as flags."""

from __future__ import annotations

import pytest
from absl import flags

from benchmarks.number_lists import whole_numbers
from gorila_jax.types import ConfigError


def _flag(text: str) -> flags.FlagHolder:
    values = flags.FlagValues()
    holder = flags.DEFINE_list("shards", text, "", flag_values=values)
    values(["program"])
    return holder


def test_numbers_keep_their_order():
    assert whole_numbers(_flag("4,1,16")) == [4, 1, 16]


@pytest.mark.parametrize("text", ["", "0", "1,-2", "1,x", "1.5", "2,2"])
def test_what_is_no_list_of_whole_numbers_is_refused(text):
    with pytest.raises(ConfigError, match="--shards="):
        whole_numbers(_flag(text))
