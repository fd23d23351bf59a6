"""How many threads a pool of environments should have: measured, since more of them may well be slower."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gorila_jax.types import Environment

ROUNDS = 5
WORTH_A_THREAD = 1.05
"""More threads are taken only where they are faster by more than this: others need the cores too."""


def usable_cores() -> int:
    """The cores that this process may run on, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_choices(most: int) -> tuple[int, ...]:
    """One thread, half of `most` and `most`, ascending and each only once."""
    return tuple(sorted({1, max(1, most // 2), most}))


def steps_per_second(
    environments: Sequence[Environment], clock: Callable[[], float], seconds: float, seed: int = 0
) -> list[float]:
    """How fast each of `environments` is, all their single environments together.

    They are stepped in turns with random actions, several times around, so that what else the machine does
    strikes them alike; the median of its turns counts.

    Args:
        environments: reset by this.
        clock: in seconds.
        seconds: for all turns of all environments together; one step takes as long as it takes.
        seed: of the actions.
    """
    random = np.random.default_rng(seed)
    turn = seconds / (ROUNDS * len(environments))
    for environment in environments:
        environment.reset()
    speeds: list[list[float]] = [[] for _ in environments]
    for _ in range(ROUNDS):
        for environment, speed in zip(environments, speeds, strict=True):
            size, num_actions = environment.num_environments, environment.spec.num_actions
            steps, start = 0, clock()
            while (elapsed := clock() - start) < turn:
                environment.step(random.integers(num_actions, size=size, dtype=np.int32))
                steps += size
            speed.append(steps / elapsed)
    return [statistics.median(speed) for speed in speeds]


def fewest_of_the_fastest(speeds: Mapping[int, float]) -> int:
    """The fewest threads that no other number beats by more than `WORTH_A_THREAD`.

    Args:
        speeds: steps per second by number of threads.
    """
    return min(count for count, speed in speeds.items() if speed * WORTH_A_THREAD >= max(speeds.values()))
