"""A batch of random numbers that lies on a learner's devices, and a learner that has no other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from gorila_jax.config import Config
from gorila_jax.learner.gradients import LossFn
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import DeviceBatch, Prefetcher, to_devices
from gorila_jax.runtime.plan import Plan
from gorila_jax.types import STORED_STATE, Batch, ParameterServer, SampleInfo, Step


def resident_batch(plan: Plan, devices: Sequence[jax.Device]) -> DeviceBatch:
    """Random observations, actions and rewards of the sizes of a run."""
    config, spec, table = plan.config, plan.spec, plan.table
    random, size = np.random.default_rng(0), config.learner.batch_size
    leading = (size, table.window_steps)
    steps = Step(
        observation=random_observations((*leading, *spec.observation_shape), spec.observation_dtype),
        action=random.integers(spec.num_actions, size=leading, dtype=np.int32),
        reward=random.integers(-1, 2, size=leading).astype(np.float32),
        discount=np.full(leading, config.env.discount, np.float32),
        valid=np.ones(leading, np.bool_),
    )
    keys, probabilities = np.arange(size, dtype=np.uint64), np.full(size, 1 / size)
    info = SampleInfo(keys, probabilities, np.full(size, size, np.int64))
    learner = dataclasses.replace(config.learner, prefetch_batches=0)
    state = np.zeros((size, table.state_size), STORED_STATE)
    batch = Prefetcher(learner, devices, lambda timeout_s: Batch(steps, state, info)).next_batch(0.0)
    assert batch is not None
    steps, state, weights = to_devices(devices)((batch.steps, batch.state, batch.weights))
    return DeviceBatch(steps, state, weights, batch.keys)


def resident_learner(
    config: Config,
    loss_fn: LossFn,
    devices: Sequence[jax.Device],
    batch: DeviceBatch,
    server: ParameterServer,
    index: int = 0,
) -> Learner:
    """Learner `index` of `server` as in a run, but that it always has the same batch and sends no priorities.

    It reads the numbers of an update while the next one runs: the host stays one update ahead.
    """
    return Learner(
        config.learner,
        loss_fn,
        devices,
        next_batch=lambda timeout_s: batch,
        pull=functools.partial(server.pull, index),
        push=functools.partial(server.push, index),
    )


def random_observations(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    scale = 255 if np.issubdtype(dtype, np.integer) else 1
    return (np.random.default_rng(0).random(shape, np.float32) * scale).astype(dtype)
