"""The threads of a run's environment pools, chosen at its start."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable

from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.environments.names import is_toy, is_user_environment
from gorila_jax.environments.threads import (
    fewest_of_the_fastest,
    steps_per_second,
    thread_choices,
    usable_cores,
)

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
