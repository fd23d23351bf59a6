"""From the rows of a replay item to a sequence of steps to learn from, and its TD errors.

A sequence of T = length trained steps, after U steps of burn-in and with n-step targets, is unrolled over
U + T + n observations o_i ... o_{i+U+T+n-1}. With a stack of S frames its rows are

    row             0 ... S-1          S ... S+U+T+n-2
    observation     o_{i-S+1} ... o_i  o_{i+1} ... o_{i+U+T+n-1}

as in `windows`, whose transition over one step is the sequence of T = 1, U = 0, n = 1. A row's action, reward
and discount led to its observation. Near an episode's start the first observation repeats in place of burn-in
that there is none of, near its end rows follow that mean nothing: both have `valid` false.

(R2D2, Kapturowski et al. 2019, section 2.3. Its sequences of T steps overlap, and none crosses an episode.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gorila_jax.rl.rescaling import Rescaling
from gorila_jax.rl.windows import Layout
from gorila_jax.types import Inputs, Step


class Sequences(NamedTuple):
    """B sequences with time first. The trained part has T steps and M = T + n - 1 rows after the first."""

    inputs: Inputs  # [U + T + n, B, ...]
    a_tm1: jax.Array  # [T, B] int32
    r_t: jax.Array  # [M, B] float32
    discount_t: jax.Array  # [M, B] float32
    valid_t: jax.Array  # [M, B] bool: the step that led here was really taken


def sequences(steps: Step, layout: Layout) -> Sequences:
    """Rebuilds what the network saw at every step of a batch of items, and what followed.

    Args:
      steps: rows [B, W, ...].
      layout: whose `window_steps` is W.

    Raises:
      ValueError: the window has another number of rows.
    """
    stack, window = layout.frame_stack, steps.reward.shape[1]
    if window != layout.window_steps:
        raise ValueError(f"a window of {window} rows, where {layout} has {layout.window_steps}")
    rows = Step(*(jnp.swapaxes(field, 0, 1) for field in steps))  # [W, B, ...]
    observed = window - stack + 1
    frames = [rows.observation[k : k + observed] for k in range(stack)]
    valid = rows.valid[stack - 1 :]
    # Rows that mean nothing come before the first step or after the last one: the last of those before
    # holds the observation that the episode began with.
    followed = jnp.concatenate([valid[1:], jnp.zeros_like(valid[:1])])
    inputs = Inputs(
        stack=jnp.stack(frames, axis=2),
        last_action=rows.action[stack - 1 :],
        last_reward=rows.reward[stack - 1 :],
        first=~valid & followed,
    )
    after = stack + layout.burn_in_steps
    return Sequences(
        inputs=inputs,
        a_tm1=rows.action[after : after + layout.length_steps],
        r_t=rows.reward[after:],
        discount_t=rows.discount[after:],
        valid_t=rows.valid[after:],
    )


def sequence_td_errors(
    q_tm1: Any, r_t: Any, discount_t: Any, valid_t: Any, v_t: Any, rescaling: Rescaling
) -> Any:
    """n-step TD errors of the T steps of a sequence, 0 for steps that were never taken. NumPy's or JAX's.

    y = h(R + D h^-1(v)), with the reward R and the discount D of the next n steps, or of as many as there are
    before the episode's end; v is of the observation after the last of them, and never of one that only
    fills the window up. (R2D2, Kapturowski et al. 2019, section 2.3, equation 1.)

    Args:
      q_tm1: [T, ...] float32, of the actions taken.
      r_t, discount_t: [M, ...] float32, M = T + n - 1.
      valid_t: [M, ...] bool: true for the steps taken, then false.
      v_t: [M + 1, ...] float32, of every observation.
      rescaling: h and its inverse.

    Returns:
      [T, ...] float32.
    """
    xp = jnp if isinstance(v_t, jax.Array) else np
    length, rows = len(q_tm1), len(r_t)
    r_t, discount_t = xp.where(valid_t, r_t, 0.0), xp.where(valid_t, discount_t, 1.0)
    last = xp.sum(valid_t, axis=0, keepdims=True)  # of the real observations
    of_last = xp.take_along_axis(v_t, last, axis=0)
    place = xp.arange(rows + 1).reshape(-1, *(1,) * (v_t.ndim - 1))
    v_t = rescaling.invert(xp.where(place <= last, v_t, of_last))
    n = rows - length + 1
    target = v_t[n:]
    for k in reversed(range(n)):
        target = r_t[k : k + length] + discount_t[k : k + length] * target
    return xp.where(valid_t[:length], rescaling.apply(target) - q_tm1, 0.0)
