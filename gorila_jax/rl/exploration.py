"""Schedules of epsilon, the probability of a random action."""

from __future__ import annotations


def linear_schedule(count: int, initial: float, final: float, decay: int) -> float:
    """From `initial` at count 0 in a straight line to `final` at `decay`, and `final` from there on.

    DQN counts steps (Mnih et al. 2015, Methods), Gorila global updates (Nair et al. 2015, section 5.1).
    `decay` in the unit of `count`; 0 gives `final` at once.
    """
    if count < 0:
        raise ValueError(f"a schedule needs a count of 0 or more, not {count}")
    if count >= decay:
        return final
    return initial + (final - initial) * (count / decay)


def ladder(index: int, num_environments: int, base: float = 0.4, alpha: float = 7.0) -> float:
    """Environment `index` of `num_environments` keeps base ** (1 + alpha index / (num_environments - 1)).

    The index runs over all environments of all actors. A single environment gets `base`.
    (Ape-X, Horgan et al. 2018, section 4.1.)

    Raises:
      ValueError: there is no such environment.
    """
    if not 0 <= index < num_environments:
        raise ValueError(f"no environment {index} among {num_environments}")
    return base ** (1 + alpha * index / max(num_environments - 1, 1))
