"""Priorities of replay items, and the weights that undo what sampling by them does.

Everything here is arithmetic on arrays of NumPy and of JAX alike: actors and learners share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LEAST = 1e-6  # Reverb never draws an item of priority 0 while others have more


def priorities(td_errors: Any) -> Any:
    """|TD error| + 1e-6, of any shape: unweighted, unclipped (Ape-X, Horgan et al. 2018, section 3)."""
    return abs(td_errors) + _LEAST


def sequence_priorities(td_errors: Any, valid: Any, eta: float) -> Any:
    """eta max |TD error| + (1 - eta) mean |TD error| + 1e-6, over the valid steps of each sequence.

    (R2D2, Kapturowski et al. 2019, section 2.3.)

    Args:
      td_errors: [T, ...] float32, 0 where not valid.
      valid: [T, ...] bool; a sequence without any valid step gets the least priority that there is.
      eta: from 0 to 1.

    Returns:
      [...] float32.
    """
    magnitude = abs(td_errors)
    steps = valid.sum(axis=0).clip(1)
    return priorities(eta * magnitude.max(axis=0) + (1 - eta) * magnitude.sum(axis=0) / steps)


def importance_weights(probabilities: np.ndarray, table_sizes: np.ndarray, exponent: float) -> np.ndarray:
    """(N p) ** -beta, divided by the largest of the batch.

    The batch is the learner's global one, whatever devices share it, and not the whole memory: an item that
    nobody drew does not scale anything. (Schaul et al. 2016, section 3.4.)

    Args:
      probabilities: [B] float64, p, of an item among all N.
      table_sizes: [B], N.
      exponent: beta; 0 gives weights of 1.

    Returns:
      [B] float32 in (0, 1].
    """
    weights = (table_sizes * probabilities) ** -exponent
    return (weights / np.max(weights)).astype(np.float32)


def recent_td_errors(
    r_t: np.ndarray, discount_t: np.ndarray, q_tm1: np.ndarray, v_t: np.ndarray
) -> np.ndarray:
    """TD errors of the transitions that end in the newest observation, one for each number of steps.

    Row k - 1 is that of the transition over the last k steps: r_1 + d_1 r_2 + ... + (d_1 ... d_k) v - q, its
    rewards and discounts counted from its own start.

    Args:
      r_t, discount_t: [n, E] float32, of the last n steps, the newest in the last row.
      q_tm1: [n, E] float32, of the actions taken in those steps.
      v_t: [E] float32, value of the newest observation.

    Returns:
      [n, E] float32.
    """
    errors = np.empty_like(q_tm1)
    target = v_t
    for k in range(1, len(q_tm1) + 1):
        target = r_t[-k] + discount_t[-k] * target
        errors[k - 1] = target - q_tm1[-k]
    return errors
