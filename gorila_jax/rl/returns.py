"""Returns over the few steps between two observations that an agent learns from."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Rewards = TypeVar("Rewards", jax.Array, np.ndarray)


def clip_rewards(r_t: Rewards, max_abs_reward: float) -> Rewards:
    """Clips every single step's reward to ±`max_abs_reward`; 0 leaves them alone.

    DQN (Mnih et al. 2015, Methods, "Training details") clips at ±1. It comes before any sum over steps.
    """
    if max_abs_reward < 0:
        raise ValueError(f"max_abs_reward must not be negative: {max_abs_reward}")
    return r_t.clip(-max_abs_reward, max_abs_reward) if max_abs_reward else r_t


def n_step_return(r_t: jax.Array, discount_t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of n rewards, and the discount of the value that follows them.

    R = r_1 + d_1 r_2 + d_1 d_2 r_3 + ..., to which a target adds (d_1 d_2 ... d_n) V. Discounts hold gamma,
    or 0 where the episode ended for good; padding has reward 0 and discount 1 and so changes neither.
    (Ape-X, Horgan et al. 2018, section 3.1.)

    Args:
      r_t: [..., n] float32.
      discount_t: [..., n] float32.

    Returns:
      (R [...], product of the discounts [...]), float32.
    """
    return_t = jnp.zeros_like(r_t[..., 0])
    for k in reversed(range(r_t.shape[-1])):
        return_t = r_t[..., k] + discount_t[..., k] * return_t
    return return_t, jnp.prod(discount_t, axis=-1)
