"""Small servers and gradients for the tests of this folder."""

from __future__ import annotations

from typing import Any

import flax.jax_utils
import jax
import numpy as np

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import DeviceParameterServer, ShardedParameterServer
from gorila_jax.types import Gradient

FORMS = ("device", "one_shard", "three_shards")
SHAPES = {"torso": {"w": (2, 3), "b": (3,)}, "head": {"w": (3, 2)}, "scale": ()}  # 16 parameters


def filled(value: float) -> Any:
    return jax.tree.map(
        lambda shape: np.full(shape, value, np.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


def random_tree(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), filled(0))


def make_server(
    form: str, parameters: Any = None, donate: bool | None = None, **settings: Any
) -> DeviceParameterServer | ShardedParameterServer:
    """One device; the sharded forms have two learners, which share it."""
    parameters = filled(0) if parameters is None else parameters
    device = jax.devices()[:1]
    num_shards = 3 if form == "three_shards" else 1
    config = ParameterServerConfig(num_shards=num_shards, **settings)
    if form == "device":
        return DeviceParameterServer(parameters, config, device, donate)
    return ShardedParameterServer(parameters, config, [device, device], donate)


def push(
    server: Any,
    gradients: Any,
    age: int = 0,
    finite: bool = True,
    outlier: bool = False,
    learner: int = 0,
) -> None:
    """Pushes `gradients` (no device axis), computed from parameters `age` updates old."""
    version = server.pull(learner).version
    version = tuple(v - age for v in version) if isinstance(version, tuple) else version - age
    replicated = flax.jax_utils.replicate(gradients, jax.devices()[:1])
    server.push(learner, Gradient(version, replicated, np.array([finite]), np.array([outlier])))


def values(tree: Any) -> np.ndarray:
    """All numbers of a pytree as one float vector."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
