"""Gorila's guard against outlier losses (Nair et al. 2015, section 4.3), as pure functions on a small state.

Each learner keeps a running mean and standard deviation of the absolute loss and discards gradients whose
loss lies several deviations above the mean. The statistics take in *all* losses, those of discarded gradients
too: otherwise one change of regime would block learning for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MEMORY_LOSSES = 2**20
# In float32 a running mean over many more losses stands still: its steps shrink below the rounding. From here
# on every loss weighs 1/_MEMORY_LOSSES, and the oldest ones fade.


class GuardState(NamedTuple):
    """Statistics of the absolute losses so far: one loss per update."""

    losses: jax.Array  # [] int32, how many
    mean: jax.Array  # [] float32
    variance: jax.Array  # [] float32, of the population


def initial_guard_state() -> GuardState:
    return GuardState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def is_outlier(state: GuardState, loss: jax.Array, deviations: float, warmup_losses: int) -> jax.Array:
    """Whether |loss| > mean + deviations * standard deviation of the losses before it.

    Args:
      state: of the losses before this one.
      loss: [] float32. A non-finite loss is no outlier: it is refused on its own ground.
      deviations: k; 0 turns the guard off.
      warmup_losses: so many losses pass first (at least two: fewer have no deviation).

    Returns:
      [] bool.
    """
    if not deviations:
        return jnp.zeros((), bool)
    threshold = state.mean + deviations * jnp.sqrt(state.variance)
    armed = state.losses >= max(warmup_losses, 2)
    return armed & jnp.isfinite(loss) & (jnp.abs(loss) > threshold)


def observe_loss(state: GuardState, loss: jax.Array) -> GuardState:
    """Takes the absolute loss into the statistics (Welford's update); a non-finite one leaves them alone."""
    weight = 1.0 / jnp.minimum(state.losses + 1, _MEMORY_LOSSES).astype(jnp.float32)
    delta = jnp.abs(loss) - state.mean
    taken = GuardState(
        losses=state.losses + 1,
        mean=state.mean + weight * delta,
        variance=(1.0 - weight) * (state.variance + weight * jnp.square(delta)),
    )
    finite = jnp.isfinite(taken.variance)
    return GuardState(*(jnp.where(finite, new, old) for new, old in zip(taken, state, strict=True)))
