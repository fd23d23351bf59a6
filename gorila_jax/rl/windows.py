"""From the rows of a replay item to the transition that it stands for.

An item of a transition that starts at observation o_i is the window of rows

    row             0 ... S-1          S ... S+n-1
    observation     o_{i-S+1} ... o_i  o_{i+1} ... o_{i+n}

with S the frame stack and n the steps. A row's action, reward and discount *led to* its observation, so
those of the transition lie in rows S and after. At an episode's start the first frame repeats to fill the
stack; near its end the window is filled up with rows whose `valid` is false.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gorila_jax.rl.returns import n_step_return
from gorila_jax.types import Step


class Transition(NamedTuple):
    """B transitions over up to n steps; `r_t` and `discount_t` are already the n-step ones."""

    stack_tm1: jax.Array  # [B, S, *observation_shape], the observation's dtype
    a_tm1: jax.Array  # [B] int32, taken at stack_tm1
    r_t: jax.Array  # [B] float32
    discount_t: jax.Array  # [B] float32
    stack_t: jax.Array  # [B, S, *observation_shape]


class Layout(NamedTuple):
    """How the steps of an episode become items of replay: sequences of steps, or transitions."""

    frame_stack: int  # S
    burn_in_steps: int  # U, observations that only bring the recurrent state up to date
    length_steps: int  # T, trained steps
    stride_steps: int  # from one sequence of an episode to the next
    n_steps: int  # of reward before the bootstrap
    stores_state: bool  # whether the actor's recurrent state goes with a sequence

    @property
    def window_steps(self) -> int:
        """W, rows of one item."""
        return self.frame_stack - 1 + self.burn_in_steps + self.length_steps + self.n_steps


def transition_layout(frame_stack: int, n_steps: int) -> Layout:
    """Items of one trained step, one for every step."""
    return Layout(frame_stack, 0, 1, 1, n_steps, stores_state=False)


def transitions(steps: Step, frame_stack: int) -> Transition:
    """Rebuilds the frame stacks of a batch of items and sums their rewards.

    The end stack closes with the last *real* observation, k <= n steps after the start: it never holds
    padding, whose content changes nothing.

    Args:
      steps: rows [B, W, ...], W = frame_stack + n.
      frame_stack: S.

    Raises:
      ValueError: a window without a row after the start stack.
    """
    stack = frame_stack
    n = steps.reward.shape[1] - stack
    if n < 1:
        raise ValueError(f"a window of {stack + n} rows holds no step after a stack of {stack} frames")
    valid = steps.valid[:, stack:]
    r_t, discount_t = n_step_return(
        jnp.where(valid, steps.reward[:, stack:], 0.0), jnp.where(valid, steps.discount[:, stack:], 1.0)
    )
    stack_t = jax.vmap(lambda rows, start: jax.lax.dynamic_slice_in_dim(rows, start, stack))(
        steps.observation, jnp.sum(valid, axis=1, dtype=jnp.int32)
    )
    return Transition(
        stack_tm1=steps.observation[:, :stack],
        a_tm1=steps.action[:, stack],
        r_t=r_t,
        discount_t=discount_t,
        stack_t=stack_t,
    )
