"""The threads of a run's environment pools: measured at its start, since more of them may well be slower."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.environments.cores import usable_cores
from gorila_jax.environments.names import is_toy, is_user_environment
from gorila_jax.types import Environment

ROUNDS = 5
WORTH_A_THREAD = 1.05
"""More threads are taken only where they are faster by more than this: others need the cores too."""

MEASURE_S = 1.0
ENVIRONMENTS_PER_THREAD = 4  # at most, while measuring: to make an Atari game takes a core 0.1 s


def choose_pool_threads(config: Config, note: Callable[[str], None]) -> int:
    """`env.num_threads` for the pool of each actor in this process; 0 where there are none.

    What was set is taken. Otherwise the actors share the cores evenly, and it is measured, in some two
    seconds, which of one thread, half of an actor's share and all of it steps its environments fastest. It
    is not measured in lockstep, which takes the whole share, and for toys, which get one thread: their steps
    cost less than waking another. The number changes how fast a run is and nothing else.

    Args:
      note: is given the steps per second of each choice, where they were measured.
    """
    if config.env.num_threads or is_user_environment(config.environment):
        return config.env.num_threads
    share = max(1, usable_cores() // config.actor.num_actors)
    most = min(share, config.env.num_environments)
    if is_toy(config.environment):
        return 1
    choices = thread_choices(most)
    if len(choices) == 1 or config.run.lockstep:
        return most
    size = min(config.env.num_environments, ENVIRONMENTS_PER_THREAD * most)
    with contextlib.ExitStack() as stack:
        environments = []
        for count in choices:
            env = dataclasses.replace(config.env, num_threads=count)
            environment = make_environment(config.environment, env, seed=0, num_environments=size)
            stack.callback(environment.close)
            environments.append(environment)
        speeds = steps_per_second(environments, time.monotonic, MEASURE_S)
    measured = dict(zip(choices, speeds, strict=True))
    chosen = fewest_of_the_fastest(measured)
    listed = ", ".join(f"{count}: {speed:,.0f}" for count, speed in measured.items())
    note(f"environments in {chosen} threads for each actor, measured in steps/s on {size} of them: {listed}")
    return chosen


def thread_choices(most: int) -> tuple[int, ...]:
    """One thread, half of `most` and `most`, ascending and each only once."""
    return tuple(sorted({1, max(1, most // 2), most}))


def steps_per_second(
    environments: Sequence[Environment], clock: Callable[[], float], seconds: float
) -> list[float]:
    """How fast each of `environments` is, all their single environments together.

    They are stepped in turns with random actions, several times around, so that what else the machine does
    strikes them alike; the median of its turns counts.

    Args:
      environments: reset by this.
      clock: in seconds.
      seconds: for all turns of all environments together; one step takes as long as it takes.
    """
    random = np.random.default_rng(0)
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
