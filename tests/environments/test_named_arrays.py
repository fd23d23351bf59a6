"""Environments that observe several named arrays, of which some are laid side by side."""

from __future__ import annotations

import envpool
import numpy as np

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.environments.seeds import environment_seeds

NAME = "MiniGrid-MemoryS7-v0"


def test_an_observation_is_the_arrays_that_were_named_in_their_order():
    config = EnvironmentConfig(num_environments=3, observation_keys=("image", "direction"))
    environment = make_environment(NAME, config, seed=2)
    assert environment.spec == environment_spec(NAME, config)
    assert environment.spec.observation_shape == (7 * 7 * 3 + 4,)
    assert environment.spec.observation_dtype == np.float32
    raw = envpool.make_gymnasium(NAME, num_envs=3, seed=environment_seeds(2, 3))
    expected, _ = raw.reset()
    got = environment.reset().observation
    random, seen = np.random.default_rng(0), set()
    for _ in range(30):
        np.testing.assert_array_equal(got[:, :147], expected["image"].reshape(3, -1))
        np.testing.assert_array_equal(got[:, 147:].argmax(axis=1), expected["direction"])
        np.testing.assert_array_equal(got[:, 147:].sum(axis=1), 1)
        seen |= set(expected["direction"].tolist())
        actions = random.integers(environment.spec.num_actions, size=3, dtype=np.int32)
        expected, got = raw.step(actions)[0], environment.step(actions).observation
    assert len(seen) > 1
    environment.close()
    raw.close()


def test_other_keys_make_another_observation():
    shape = environment_spec(NAME, EnvironmentConfig(observation_keys=("direction",))).observation_shape
    assert shape == (4,)
