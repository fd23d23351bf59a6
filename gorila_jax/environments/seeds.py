"""One seed for every environment of a batch."""

from __future__ import annotations

import numpy as np

_END = 2**31 - 1  # EnvPool's seeds are int32


def environment_seeds(seed: int, num_environments: int) -> list[int]:
    """Distinct seeds below 2**31 - 1, the same for the same arguments.

    Hashed and not counted up from `seed`: with seed + index the second environment of one actor would play
    the games of the first environment of the next actor.
    """
    drawn = np.random.default_rng(seed).choice(_END, size=num_environments, replace=False)
    return [int(each) for each in drawn]
