"""The start-up self-test of an environment: does it reset when everybody else believes it does?"""

from __future__ import annotations

import numpy as np

from gorila_jax.types import ConfigError, End, Environment


def check_autoreset(environment: Environment, *, seed: int = 0, max_steps: int = 1_000) -> bool:
    """Steps `environment` with random actions until one of its episodes has ended, and one step further.

    Cheapest on an environment made for it, of one environment and a short time limit. Ours also check
    themselves on every step; this one finds an environment that cannot.

    Args:
        environment: reset by this; reset it again before use.
        seed: of the random actions.
        max_steps: give up after so many steps of each environment.

    Returns:
        Whether an end came, so that anything was tested at all: tell the user when it did not.

    Raises:
        ConfigError: it resets in the same step, or marks first observations wrongly.
    """
    name = environment.spec.name
    random = np.random.default_rng(seed)
    if not environment.reset().first.all():
        raise ConfigError(f"environment {name}: `first` is not true everywhere after a reset")
    ended = np.zeros(environment.num_environments, bool)
    for _ in range(max_steps):
        size = environment.num_environments
        step = environment.step(random.integers(environment.spec.num_actions, size=size, dtype=np.int32))
        if len(step.first) != size:
            raise ConfigError(f"environment {name}: {len(step.first)} results for {size} environments")
        if np.any(ended & ~step.first):
            raise ConfigError(
                f"environment {name} resets in the same step that ends an episode, but must reset in the "
                "step after it (as EnvPool does, and Gymnasium's AutoresetMode.NEXT_STEP): the last "
                "observation of an episode is lost, and a real step would be taken for a reset"
            )
        if np.any(step.first & ~ended):
            raise ConfigError(f"environment {name}: a first observation where no episode had ended")
        if np.any(step.first & (step.end != End.NONE)):
            raise ConfigError(f"environment {name}: an episode ends with its first observation")
        if ended.any():
            return True
        ended = step.end != End.NONE
    return False
