"""Temporal-difference errors, and the loss made of them. All take any leading axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def values_of_actions(q: jax.Array, actions: jax.Array) -> jax.Array:
    """The values [...] of the actions [...] among q [..., A]."""
    return jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]


def q_learning(
    q_tm1: jax.Array, a_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array
) -> jax.Array:
    """r + discount max_a q_t(a) - q_tm1(a_tm1), with no gradient through the target.

    DQN (Mnih et al. 2015, Methods, algorithm 1); `q_t` comes from the target network.

    Args:
      q_tm1: [..., A] float32, online values where the action was taken.
      a_tm1: [...] int32.
      r_t: [...] float32.
      discount_t: [...] float32, 0 after a terminal step.
      q_t: [..., A] float32, target values of the observation that followed.

    Returns:
      [...] float32: positive where the online value is too low.
    """
    target = r_t + discount_t * jnp.max(q_t, axis=-1)
    return jax.lax.stop_gradient(target) - values_of_actions(q_tm1, a_tm1)


def double_q_learning(
    q_tm1: jax.Array,
    a_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    q_t_value: jax.Array,
    q_t_selector: jax.Array,
) -> jax.Array:
    """As `q_learning`, but the online network chooses the action that the target network values.

    Double DQN (van Hasselt et al. 2016, equation 4).

    Args:
      q_tm1, a_tm1, r_t, discount_t: as in `q_learning`.
      q_t_value: [..., A] float32, target values of the observation that followed.
      q_t_selector: [..., A] float32, online values of the same observation.

    Returns:
      [...] float32.
    """
    target = r_t + discount_t * values_of_actions(q_t_value, jnp.argmax(q_t_selector, axis=-1))
    return jax.lax.stop_gradient(target) - values_of_actions(q_tm1, a_tm1)


def huber_loss(td_error: jax.Array, max_abs_td_error: float) -> jax.Array:
    """Half the squared error up to `max_abs_td_error` = c, and c |td| - c²/2 beyond; 0: squared everywhere.

    The gradient is the TD error clipped to ±c, which is how DQN states it (Mnih et al. 2015, Methods,
    "Training details").

    Args:
      td_error: [...] float32.
      max_abs_td_error: c, not negative.

    Returns:
      [...] float32.
    """
    if max_abs_td_error < 0:
        raise ValueError(f"max_abs_td_error must not be negative: {max_abs_td_error}")
    if not max_abs_td_error:
        return 0.5 * jnp.square(td_error)
    magnitude = jnp.abs(td_error)
    quadratic = jnp.minimum(magnitude, max_abs_td_error)
    return 0.5 * jnp.square(quadratic) + max_abs_td_error * (magnitude - quadratic)
