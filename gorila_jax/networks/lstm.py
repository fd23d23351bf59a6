"""The recurrent core."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp


class LSTM(hk.Module):
    """`hk.LSTM`, unrolled over time with the product of all inputs taken at once, outside the loop.

    What is left inside is the product of the hidden state with its own weights, a fraction of the work where
    the inputs are the features of convolutions. The parameters are those of `hk.LSTM`, equally initialised.
    The state is [B, 2 * units] float32: hidden, then cell. (Hochreiter & Schmidhuber 1997; the forget gate's
    bias begins at 1, Jozefowicz et al. 2015.)
    """

    def __init__(self, units: int, name: str | None = None):
        super().__init__(name=name)
        self._units = units

    def __call__(self, inputs: jax.Array, first: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Unrolls over T steps; a state starts afresh, at 0, before every step that is a first one.

        Args:
          inputs: [T, B, F] float32.
          first: [T, B] bool.
          state: [B, 2 * units] float32, before the first step.

        Returns:
          Hidden states [T, B, units] and the state after the last step.
        """
        features, units = inputs.shape[-1], self._units
        init = hk.initializers.TruncatedNormal(stddev=(features + units) ** -0.5)
        w = hk.get_parameter("w", (features + units, 4 * units), jnp.float32, init=init)
        b = hk.get_parameter("b", (4 * units,), jnp.float32, init=jnp.zeros)
        from_inputs = inputs @ w[:features] + b[None, None]
        recurrent = w[features:]

        def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            gates, begins = now
            state = jnp.where(begins[:, None], 0.0, state)
            hidden, cell = jnp.split(state, 2, axis=-1)
            input_gate, candidate, forget_gate, output_gate = jnp.split(
                gates + hidden @ recurrent, 4, axis=-1
            )
            cell = jax.nn.sigmoid(forget_gate + 1.0) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
            return jnp.concatenate([hidden, cell], axis=-1), hidden

        state, hidden = jax.lax.scan(step, state, (from_inputs, first))
        return hidden, state


def initial_lstm_state(size: int, units: int) -> jax.Array:
    """[size, 2 * units] float32 zeros."""
    return jnp.zeros((size, 2 * units), jnp.float32)
