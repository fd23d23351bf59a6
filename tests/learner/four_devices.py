"""Compares a learner of four devices with one of a single device. Run by test_gradients.py."""

from __future__ import annotations

from typing import Any

import flax.jax_utils
import jax
import numpy as np
import optax

from gorila_jax.config import LearnerConfig
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher
from gorila_jax.types import Batch, Gradient, Snapshot
from tests.learner.problem import batch, loss_fn, parameters

UPDATES = 100
CONFIG = LearnerConfig(
    batch_size=16,
    max_gradient_norm=0.5,
    outlier_deviations=1.0,
    outlier_warmup_losses=10,
    importance_exponent=0.6,
)


class Server:
    """Plain gradient descent on every device for itself."""

    def __init__(self, num_devices: int):
        self.devices = jax.devices()[:num_devices]
        self.parameters, self.target = (
            flax.jax_utils.replicate(parameters(seed), self.devices) for seed in (0, 1)
        )
        self.gradients: list[Gradient] = []
        self.priorities: list[np.ndarray] = []  # [B] of every update
        optimizer = optax.sgd(0.05)

        def apply(parameters: Any, gradients: Any) -> Any:
            updates, _ = optimizer.update(gradients, optimizer.init(parameters))
            return optax.apply_updates(parameters, updates)

        self.apply = jax.pmap(apply, devices=self.devices)

    def pull(self) -> Snapshot:
        return Snapshot(len(self.gradients), self.parameters, self.target)

    def push(self, gradient: Gradient) -> None:
        self.gradients.append(gradient)
        self.parameters = self.apply(self.parameters, gradient.gradients)


def prioritized(seed: int) -> Batch:
    """A batch whose items were drawn with different probabilities, the rarest one anywhere in it."""
    drawn = batch(CONFIG.batch_size, seed)
    probabilities = np.random.default_rng(seed).uniform(0.01, 0.2, CONFIG.batch_size)
    return drawn._replace(info=drawn.info._replace(probabilities=probabilities))


def train(num_devices: int) -> tuple[Server, Learner]:
    server = Server(num_devices)
    seeds = iter(range(UPDATES))
    prefetcher = Prefetcher(CONFIG, server.devices, lambda timeout_s: prioritized(next(seeds)))
    learner = Learner(
        CONFIG,
        loss_fn,
        server.devices,
        prefetcher.next_batch,
        server.pull,
        server.push,
        lambda keys, priorities: server.priorities.append(np.asarray(priorities).ravel()),
    )
    for _ in range(UPDATES):
        assert prefetcher.step(0.0)
        assert learner.step(0.0)
    learner.finish()
    return server, learner


def main() -> None:
    assert len(jax.devices()) == 4
    (one, learner_of_one), (four, learner_of_four) = train(1), train(4)
    outliers = 0
    for single, shared in zip(one.gradients, four.gradients, strict=True):
        np.testing.assert_allclose(shared.gradients["w"][0], single.gradients["w"][0], rtol=1e-5, atol=1e-7)
        for flag in ("finite", "outlier"):
            assert np.all(getattr(shared, flag) == np.asarray(getattr(single, flag))[0])
        outliers += int(np.asarray(single.outlier)[0])
    assert 0 < outliers < UPDATES
    np.testing.assert_allclose(four.priorities, one.priorities, rtol=1e-4)
    assert not np.allclose(one.parameters["w"][0], parameters(0)["w"])
    weights = np.asarray(four.parameters["w"])
    np.testing.assert_allclose(weights[0], one.parameters["w"][0], rtol=1e-5)
    for replica in weights[1:]:
        np.testing.assert_array_equal(replica, weights[0])
    for statistic in learner_of_four._guard:
        assert len(set(np.asarray(statistic).tolist())) == 1
    first, second = learner_of_one.state(), learner_of_four.state()
    for name, value in first.pop("guard").items():
        np.testing.assert_allclose(second["guard"][name], value, rtol=1e-4)
    second.pop("guard")
    assert first == second
    print("four devices are as one")


if __name__ == "__main__":
    main()
