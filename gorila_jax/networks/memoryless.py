"""Networks that remember nothing, given as a function of the frame stack alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gorila_jax.types import Inputs, Network, Parameters


def memoryless(init: Callable[[Any], Parameters], apply: Callable[[Parameters, Any], Any]) -> Network:
    """A network whose recurrent state has no values.

    Args:
      init: of a JAX key.
      apply: parameters and stacks [B, S, *observation_shape] to Q values [B, A] float32.
    """

    def initial_state(parameters: Parameters, size: int) -> Any:
        return jnp.zeros((size, 0), jnp.float32)

    def step(parameters: Parameters, inputs: Inputs, state: Any) -> tuple[Any, Any]:
        return apply(parameters, inputs.stack), state

    def unroll(parameters: Parameters, inputs: Inputs, state: Any) -> tuple[Any, Any]:
        steps, size = inputs.stack.shape[:2]
        values = apply(parameters, inputs.stack.reshape(steps * size, *inputs.stack.shape[2:]))
        return values.reshape(steps, size, -1), state

    return Network(init, initial_state, step, unroll)
