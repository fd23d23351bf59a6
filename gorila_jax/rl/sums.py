"""Sums over all elements of an array, several times as fast on a CPU as XLA's own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

_STRETCHES = 32


def total(array: jax.Array) -> jax.Array:
    """Of all elements: [] float32."""
    return jnp.sum(_folded(array, squared=False))


def total_of_squares(array: jax.Array) -> jax.Array:
    """Of the squares of all elements: [] float32."""
    return jnp.sum(_folded(array, squared=True))


def _folded(array: jax.Array, squared: bool) -> jax.Array:
    """An array, or its squares, with the same sum, of as few elements as can be.

    XLA's CPU backend sums an array in one thread, and what it has just computed one element after the other.
    Stretches of the array that are added to each other go through vector units and are shared by threads.
    """
    stretches = [array] if array.size % _STRETCHES else list(array.reshape(_STRETCHES, -1))
    if squared:
        stretches = [jnp.square(stretch) for stretch in stretches]
    return functools.reduce(jnp.add, stretches).astype(jnp.float32)
