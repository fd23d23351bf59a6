"""Epsilon-greedy over the Q values of a batch of environments, and what a network sees of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gorila_jax.types import Inputs, Network, Parameters


class Decision(NamedTuple):
    """What a policy chose for E environments, and what it thought of it."""

    actions: Any  # [E] int32
    q_taken: Any  # [E] float32, Q of those actions
    values: Any  # [E] float32, the largest Q
    states: Any  # [E, K] float32, recurrent ones that it met the inputs with: the initial one where first
    next_states: Any  # [E, K] float32, for the next inputs


Policy = Callable[[Parameters, Inputs, Any, np.ndarray, Any, int], Decision]
"""(parameters, inputs [E, ...], states [E, K], epsilons [E], key, step number) to a decision on a device."""


def make_policy(network: Network) -> Policy:
    """The jitted policy. It folds the step number into the key, so no randomness is used twice."""

    @jax.jit
    def act(
        parameters: Parameters, inputs: Inputs, states: Any, epsilons: Any, key: Any, step_number: Any
    ) -> Decision:
        explore_key, action_key = jax.random.split(jax.random.fold_in(key, step_number))
        initial = network.initial_state(parameters, len(inputs.first))
        states = jnp.where(inputs.first[:, None], initial, states)
        q_values, next_states = network.step(parameters, inputs, states)
        explore = jax.random.uniform(explore_key, epsilons.shape) < epsilons
        random_actions = jax.random.randint(action_key, epsilons.shape, 0, q_values.shape[-1])
        actions = jnp.where(explore, random_actions, jnp.argmax(q_values, axis=-1)).astype(jnp.int32)
        q_taken = jnp.take_along_axis(q_values, actions[:, None], axis=-1)[:, 0]
        return Decision(actions, q_taken, jnp.max(q_values, axis=-1), states, next_states)

    return act


class FrameStack:
    """The last S observations of every environment, restarted by an episode's first one."""

    def __init__(self, num_environments: int, frame_stack: int, shape: tuple[int, ...], dtype: np.dtype):
        self._stack = np.zeros((num_environments, frame_stack, *shape), dtype)

    def push(self, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Takes `observation` [E, ...] and `first` [E]; returns a fresh array [E, S, ...], oldest first."""
        stack = np.empty_like(self._stack)
        stack[:, :-1] = self._stack[:, 1:]
        stack[:, -1] = observation
        if first.any():
            stack[first] = observation[first, None]
        self._stack = stack
        return stack
