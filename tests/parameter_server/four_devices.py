"""Compares servers on four devices with servers on one. Run by test_forms.py."""

from __future__ import annotations

from typing import Any

import flax.jax_utils
import jax
import numpy as np

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.types import Gradient
from tests.parameter_server.problem import random_tree, values

UPDATES = 30


def train(num_shards: int, learner_devices: list[list[Any]]) -> list[np.ndarray]:
    """Parameters and target [D, n] of every learner after the same gradients; some are refused."""
    config = ParameterServerConfig(
        num_shards=num_shards, optimizer="adam", learning_rate=1e-2, target_period_updates=4
    )
    server = make_parameter_server(random_tree(100), config, learner_devices)
    for i in range(UPDATES):
        learner = i % len(learner_devices)
        devices = learner_devices[learner]
        gradients, finite, outlier = flax.jax_utils.replicate(
            (random_tree(i), np.bool_(i % 7 != 0), np.bool_(i % 5 == 0)), devices
        )
        server.push(learner, Gradient(server.pull(learner).version, gradients, finite, outlier))
    results = [values(server.pull_policy()[1])[None]]
    for learner, devices in enumerate(learner_devices):
        snapshot = server.pull(learner)
        for tree in (snapshot.parameters, snapshot.target_parameters):
            for leaf in jax.tree.leaves(tree):
                assert [shard.device for shard in leaf.addressable_shards] == devices
            results.append(
                np.stack([values(jax.tree.map(lambda x, d=d: x[d], tree)) for d in range(len(devices))])
            )
    return results


def main() -> None:
    devices = jax.devices()
    assert len(devices) == 4
    reference = train(1, [devices[:1]])
    layouts = [(1, [devices]), (3, [devices]), (3, [devices[:2], devices[2:]]), (5, [[d] for d in devices])]
    for num_shards, learner_devices in layouts:
        results = train(num_shards, learner_devices)
        for i, result in enumerate(results):
            assert (result == result[:1]).all(), "replicas differ"
            expected = reference[0] if i == 0 else reference[1 + (i - 1) % 2]
            np.testing.assert_allclose(result[0], expected[0], rtol=1e-6, atol=1e-7)
    print("equal")


if __name__ == "__main__":
    main()
