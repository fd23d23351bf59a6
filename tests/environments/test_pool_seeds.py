"""What is random in EnvPool's environments, and that seeds decide it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec
from gorila_jax.environments.seeds import environment_seeds
from tests.environments.pools import field, make


def _observations(name: str, seed: int, actions: list[int], size: int = 1, **options: Any) -> np.ndarray:
    """[len(actions) + 1, E, ...] of fixed actions."""
    environment = make(name, size=size, seed=seed, **options)
    trace = [environment.reset().observation]
    trace += [environment.step(np.full(size, action, np.int32)).observation for action in actions]
    environment.close()
    return np.stack(trace)


@pytest.mark.parametrize("name", ["MsPacman-v5", "Catch-v0", "CartPole-v1"])
def test_the_same_seed_gives_the_same_trace_and_another_one_does_not(name):
    traces = []
    for seed, threads in ((3, 1), (3, 2), (4, 1)):
        environment = make(name, size=2, seed=seed, num_threads=threads)
        random = np.random.default_rng(9)
        trace = [environment.reset()]
        for _ in range(300):
            actions = random.integers(environment.spec.num_actions, size=2, dtype=np.int32)
            trace.append(environment.step(actions))
        environment.close()
        traces.append(trace)
    one, again, other = traces
    for ours, theirs in zip(one, again, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, its)
    assert np.any(field(one, "observation") != field(other, "observation"))


def test_environments_of_one_pool_and_of_two_actors_differ_from_the_start():
    first_frames = [frame for seed in (0, 1) for frame in _observations("MsPacman-v5", seed, [], size=2)[0]]
    assert len({frame.tobytes() for frame in first_frames}) == 4


def test_no_two_environments_of_many_actors_share_a_seed():
    seeds = [seed for actor in range(8) for seed in environment_seeds(actor, 64)]
    assert len(set(seeds)) == 8 * 64
    assert environment_seeds(5, 64) == environment_seeds(5, 64)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31 - 1


def test_randomness_of_an_atari_game_is_in_its_no_ops():
    served = [1, 2, 3, 0] * 12
    one, other = (_observations("Breakout-v5", seed, served) for seed in (1, 2))
    np.testing.assert_array_equal(one[0], other[0])  # nothing moves before the ball is served
    assert np.any(one != other)
    one, other = (_observations("Breakout-v5", seed, served, noop_max=1) for seed in (1, 2))
    np.testing.assert_array_equal(one, other)


def test_sticky_actions_reach_the_game():
    assert environment_spec("pong", EnvironmentConfig()).settings["sticky_action_probability"] == 0
    sticky = EnvironmentConfig(sticky_action_probability=0.25)
    assert environment_spec("pong", sticky).settings["sticky_action_probability"] == 0.25
    up, down = [2] * 20, [3] * 20
    assert np.any(_observations("Pong-v5", 1, up) != _observations("Pong-v5", 1, down))
    always = {"sticky_action_probability": 1.0}  # the no-op of the start is repeated for ever
    np.testing.assert_array_equal(
        _observations("Pong-v5", 1, up, **always), _observations("Pong-v5", 1, down, **always)
    )
