"""What a parameter server saves: plain dicts of host arrays, the same keys in both forms.

parameters, target_parameters   the network's pytree, lists and tuples as dicts
optimizer                       shard number to optax state; the device form has one shard, "0"
versions, target_versions       [S] int64, in updates
counters                        of `ServerStatus`, int64
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import serialization

from gorila_jax.types import ConfigError, ServerStatus

STALENESS_BINS = 32
"""Bins of the staleness histogram: ages 0, 1, ... updates, and in the last one all that are older."""

State = dict[str, Any]


def to_host(tree: Any) -> Any:
    """Any pytree, optax states included, as nested dicts of host arrays. The arrays may be read-only."""
    return jax.tree.map(np.asarray, serialization.to_state_dict(tree))


def from_host(template: Any, saved: Any) -> Any:
    """`saved` (from `to_host`) in the structure and dtypes of `template`.

    Returns fresh host arrays: a transfer to a device may read them when the caller has long gone on.
    """
    as_dict = serialization.to_state_dict(template)
    leaves, structure = jax.tree_util.tree_flatten_with_path(as_dict)
    # By path and not by order, so that a store that drops empty dicts (states without arrays) does no harm.
    found = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(saved)[0]}
    arrays = [np.array(found[_name(path)], dtype=leaf.dtype) for path, leaf in leaves]
    return serialization.from_state_dict(template, jax.tree.unflatten(structure, arrays))


def check_fits(expected: State, saved: Any) -> None:
    """Raises ConfigError, naming the first difference, unless `saved` has the leaves of `expected`."""
    if not isinstance(saved, dict) or "versions" not in saved:
        raise ConfigError("The checkpoint holds no parameter server's state.")
    shards, saved_shards = np.size(expected["versions"]), np.size(saved["versions"])
    if shards != saved_shards:
        raise ConfigError(
            f"The checkpoint is of a parameter server with {saved_shards} shard(s), this run has "
            f"parameter_server.num_shards={shards}. Set it to {saved_shards}, or start anew."
        )
    shapes, saved_shapes = _shapes(expected), _shapes(saved)
    for name in sorted(shapes.keys() | saved_shapes.keys()):
        if shapes.get(name) != saved_shapes.get(name):
            here, there = (
                f"shape {found[name]}" if name in found else "nothing" for found in (shapes, saved_shapes)
            )
            raise ConfigError(
                f"The checkpoint does not fit this run: at {name} it has {there}, the run has {here}. "
                "Restore with the saved run's environment, network, optimizer, num_learners and num_shards."
            )


def counters_state(status: ServerStatus) -> State:
    """The counters of `status` as int64 arrays."""
    names = ("accepted", "stale", "outlier", "nonfinite", "staleness_histogram")
    return {name: np.asarray(getattr(status, name), np.int64) for name in names}


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {_name(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)
