"""EnvPool's threads, settings and pictures, and what we make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import envpool
import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.types import ConfigError, GorilaError
from tests.environments.pools import make


def test_closing_ends_the_threads():
    before = _threads()
    environment = make("Pong-v5", size=8, num_threads=4)
    environment.reset()
    environment.send(np.zeros(8, np.int32))
    own = _threads() - before  # others, which this process has from elsewhere, may end meanwhile
    assert len(own) >= 4
    environment.close()
    assert not own & _threads()


def _threads() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize(("name", "times"), [("Pong-v5", 15), ("Catch-v0", 60)])
def test_pools_are_closed_with_a_step_under_way_again_and_again(name, times):
    for k in range(times):
        environment = make(name, size=6, seed=k, num_threads=2)
        environment.reset()
        environment.step(np.zeros(6, np.int32))
        environment.send(np.zeros(6, np.int32))
        environment.close()


def test_action_sets():
    assert environment_spec("pong", EnvironmentConfig()).num_actions == 6
    environment = make("pong", full_action_set=True)
    assert environment.spec.num_actions == environment.spec.settings["num_actions"] == 18
    environment.reset()
    environment.step(np.array([17], np.int32))
    environment.close()


def test_the_protocol_is_told_in_json():
    settings = environment_spec("pong", EnvironmentConfig(noop_max=7)).settings
    assert settings["noop_max"] == 7
    assert settings["fire_on_reset"] is False
    assert settings["reward_clip"] is False
    assert json.loads(json.dumps(settings)) == settings
    assert not any("seed" in key or "thread" in key for key in settings)


@pytest.mark.parametrize(
    ("asked", "size", "cores", "given"), [(0, 8, 3, 3), (0, 2, 3, 2), (5, 8, 3, 5), (9, 8, 3, 8)]
)
def test_thread_count(monkeypatch, asked, size, cores, given):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    arguments = {}

    def spy(name: str, **options: Any) -> Any:
        arguments.update(options)
        return original(name, **options)

    original = envpool.make_gymnasium
    monkeypatch.setattr(envpool, "make_gymnasium", spy)
    make("Catch-v0", size=size, num_threads=asked).close()
    assert arguments["num_threads"] == given


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Pendulum-v1", {}, r"actions are continuous, Box\(1,\); only discrete actions"),
        ("MiniGrid-Empty-5x5-v0", {}, "observations are Dict; only one array of numbers"),
        ("MiniGrid-Empty-5x5-v0", {}, "env.observation_keys=direction,image,mission, or some of these"),
        ("MiniGrid-Empty-5x5-v0", {"observation_keys": ("map",)}, "names 'map', but .* direction, image"),
        (
            "Catch-v0",
            {"observation_keys": ("image",)},
            "observation_keys=image: .* Catch-v0 observes one array",
        ),
        ("FrozenLake-v1", {}, "observations are Discrete; only one array of numbers"),
        ("Catch-v0", {"noop_max": 3}, "noop_max=3: only Atari games have this, and Catch-v0 is none"),
        ("Catch-v0", {"life_loss_is_end": False}, "life_loss_is_end=False: only Atari"),
        ("CartPole-v1", {"sticky_action_probability": 0.25}, "sticky_action_probability=0.25: only Atari"),
        ("Catch-v0", {"max_steps_per_episode": 5}, "Catch-v0 knows no time limit"),
        ("Catch-v0", {"gymnasium_workers": "processes"}, "Catch-v0 runs in EnvPool's threads"),
        ("Pong-v5", {"max_steps_per_episode": 5}, "Pong-v5 is an Atari game, use max_frames_per_episode"),
        ("Pong-v5", {"noop_max": 0}, "env.noop_max is 0, it must be at least 1"),
        ("Pong-v5", {"frame_skip": 0}, "env.frame_skip is 0, it must be at least 1"),
        (
            "Pong-v5",
            {"sticky_action_probability": 1.5},
            "env.sticky_action_probability is 1.5, it must be at most 1",
        ),
        ("Pong-v5", {"max_frames_per_episode": 3}, "max_frames_per_episode=3: at least one step"),
        ("Pong-v5", {"num_environments": 0}, "num_environments=0: at least 1"),
        ("Pong-v5", {"num_threads": -1}, "env.num_threads is -1, it must be at least 0"),
        ("Catch-v0", {"max_steps_per_episode": -1}, "env.max_steps_per_episode is -1, it must be at least 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(name, EnvironmentConfig(**options), seed=0)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed=-1"):
        make("Catch-v0", seed=-1)


def test_the_picture_is_the_games_own_and_of_the_same_moment():
    config = EnvironmentConfig(num_environments=1)
    drawn = make_environment("Pong-v5", config, seed=2, renderable=True)
    plain = make("Pong-v5", seed=2)
    assert isinstance(drawn, PoolEnvironment)
    ours, theirs = drawn.reset(), plain.reset()
    pictures = []
    for t in range(60):
        np.testing.assert_array_equal(ours.observation, theirs.observation)  # drawing disturbs nothing
        picture = drawn.render()
        assert picture.shape == (210, 160, 3)
        assert picture.dtype == np.uint8
        pictures.append(picture)
        actions = np.array([2 + t % 2], np.int32)
        ours, theirs = drawn.step(actions), plain.step(actions)
    assert np.any(pictures[0][..., 0] != pictures[0][..., 1])  # in colour
    assert np.any(pictures[0] != pictures[-1])
    # The input is the grey maximum of the last two frames, shrunk: the picture has the same bright spots.
    rows, columns = (np.arange(84) + 0.5) * 210 / 84, (np.arange(84) + 0.5) * 160 / 84
    shrunk = drawn.render().mean(axis=-1)[rows.astype(int)][:, columns.astype(int)]
    now = np.corrcoef(shrunk.ravel(), ours.observation[0].ravel())[0, 1]
    assert now > 0.9
    drawn.close()
    plain.close()


def test_environments_without_a_picture_show_their_observation():
    config = EnvironmentConfig(num_environments=2)
    environment = make_environment("Catch-v0", config, seed=2, renderable=True)
    assert isinstance(environment, PoolEnvironment)
    with pytest.raises(GorilaError, match="render before reset"):
        environment.render()
    observation = environment.reset().observation[0]
    picture = environment.render()
    assert picture.ndim == 3
    side = picture.shape[0] // 10
    assert picture.shape == (10 * side, 5 * side, 3)
    np.testing.assert_array_equal(picture[side // 2 :: side, side // 2 :: side, 1], observation * 255)
    environment.close()


_ACTOR = """
import sys
import numpy as np
from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import make_environment
environment = make_environment("Pong-v5", EnvironmentConfig(num_environments=4), seed=int(sys.argv[1]))
environment.reset()
for _ in range(250):
    environment.step(np.zeros(4, np.int32))
environment.close()
"""


@pytest.mark.slow
def test_four_processes_with_a_pool_each():
    actors = [
        subprocess.Popen([sys.executable, "-c", _ACTOR, str(k)], env={"PYTHONPATH": ":".join(sys.path)})
        for k in range(4)
    ]
    try:
        assert [actor.wait(timeout=120) for actor in actors] == [0, 0, 0, 0]
    finally:
        for actor in actors:
            actor.kill()


def test_a_pool_is_made_and_reset_without_warnings(recwarn):
    environment_spec("CartPole-v1", EnvironmentConfig())
    environment = make_environment("CartPole-v1", EnvironmentConfig(num_environments=2), seed=0)
    environment.reset()
    environment.close()
    assert [str(warning.message) for warning in recwarn if "precision" in str(warning.message)] == []
