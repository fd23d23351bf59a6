"""Flickering games (Hausknecht & Stone 2015, section 4.3): what cannot be seen has to be remembered."""

from __future__ import annotations

import numpy as np

from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.types import Environment, EnvironmentSpec, EnvironmentStep

_STREAM = 0xF11C  # parts these draws from all others of the same seed


class Flicker(Environment):
    """Blanks each observation with a fixed probability: all of it is 0 then, an episode's first one too.

    Every environment flickers by itself. `render` shows the game as it is.
    """

    def __init__(self, environment: PoolEnvironment, probability: float, seed: int):
        """
        Args:
          environment: is closed with this one.
          probability: of a blank observation.
          seed: of which are blank; the same one gives the same.
        """
        self.spec = flickering(environment.spec, probability)
        self.num_environments = environment.num_environments
        self._environment = environment
        self._probability = probability
        self._random = np.random.default_rng([seed, _STREAM])

    def reset(self) -> EnvironmentStep:
        return self._blanked(self._environment.reset())

    def send(self, actions: np.ndarray) -> None:
        self._environment.send(actions)

    def recv(self) -> EnvironmentStep:
        return self._blanked(self._environment.recv())

    def render(self) -> np.ndarray:
        return self._environment.render()

    def close(self) -> None:
        self._environment.close()

    def _blanked(self, step: EnvironmentStep) -> EnvironmentStep:
        blank = self._random.random(self.num_environments) < self._probability
        observation = step.observation.copy()
        observation[blank] = 0
        return step._replace(observation=observation)


def flickering(spec: EnvironmentSpec, probability: float) -> EnvironmentSpec:
    """The spec with the probability among its settings."""
    return spec._replace(settings={**spec.settings, "flicker_probability": probability})
