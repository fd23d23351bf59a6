from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from gorila_jax.config import EnvironmentConfig, fields
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.environments.gymnasium import (
    CountedSteps,
    EnvironmentMaker,
    GymnasiumEnvironment,
    SerialVectorEnv,
)
from gorila_jax.types import ConfigError, End, GorilaError
from tests.environments.gymnasium_adapter import HERE, WALK, make, play, same

WORKERS = fields()["env.gymnasium_workers"].choices


def test_the_spec():
    spec = environment_spec(WALK, EnvironmentConfig())
    assert spec.name == WALK
    assert spec.observation_shape == (2,)
    assert spec.observation_dtype == np.float32  # the environment's own are float64
    assert spec.num_actions == 2
    assert spec.frames_per_step == 1
    assert spec.settings["max_steps_per_episode"] is None


def test_an_episode_in_full():
    environment = make(WALK, size=1, discount=0.9)
    start = environment.reset().observation[0, 0]
    walked = [environment.step(np.array([1], np.int32)) for _ in range(int(12 - start) + 2)]
    *before, end, first, _ = walked
    assert [step.observation[0, 0] for step in [*before, end]] == list(np.arange(start + 1, 13))
    assert all(step.reward[0] == 1 and step.end[0] == End.NONE for step in before)
    assert (end.reward[0], end.end[0], end.discount[0], end.first[0]) == (1, End.GAME_OVER, 0, False)
    assert (first.reward[0], first.end[0], first.first[0]) == (0, End.NONE, True)
    assert first.discount[0] == np.float32(0.9)
    assert first.observation[0, 0] < 10
    environment.close()


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_all_workers_give_the_same_as_one_after_the_other(workers):
    serial = play(make(WALK, max_steps_per_episode=8), steps=60)
    others = play(make(WALK, max_steps_per_episode=8, gymnasium_workers=workers), steps=60)
    assert same(serial, others)
    assert {int(end) for step in serial for end in step.end} == {End.NONE, End.GAME_OVER, End.TIME_LIMIT}


def test_seeds():
    assert same(play(make(WALK, seed=5), 40), play(make(WALK, seed=5), 40))
    assert not same(play(make(WALK, seed=5), 40), play(make(WALK, seed=6), 40))
    environment = make(WALK, size=8)
    starts = environment.reset().observation[:, 1]
    assert len(set(starts)) == 8
    assert not np.any(environment.reset().observation[:, 1] == starts)
    environment.close()


def test_time_limits_are_truncations_that_keep_gamma():
    own = play(make(f"{HERE}:limited", size=1), steps=4)
    assert [step.end[0] for step in own] == [0, 0, 0, End.TIME_LIMIT, 0]
    assert own[3].discount[0] == np.float32(0.99)
    ours = make(WALK, size=1, max_steps_per_episode=2)
    assert ours.spec.settings["max_steps_per_episode"] == 2
    assert [step.end[0] for step in play(ours, steps=3)] == [0, 0, End.TIME_LIMIT, 0]


def test_both_flags_at_once_are_a_game_over():
    last = play(make(f"{HERE}:both_at_once", size=1), steps=2)[-1]
    assert last.end[0] == End.GAME_OVER
    assert last.discount[0] == 0


def test_a_vector_that_resets_in_the_same_step_is_refused():
    maker = EnvironmentMaker(WALK, max_steps_per_episode=3, renderable=False)
    vector = SerialVectorEnv([maker, maker], autoreset_mode=AutoresetMode.SAME_STEP)
    environment = GymnasiumEnvironment(vector, environment_spec(WALK, EnvironmentConfig()), 0.99, seed=0)
    with pytest.raises(ConfigError, match="does not reset in the step after an end"):
        play(environment, steps=5)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("continuous", r"actions are continuous, Box\(3,\); only discrete actions"),
        ("several_actions", "actions are MultiDiscrete; only discrete actions"),
        ("dictionary", "observations are Dict; only one array of numbers"),
        ("no_environment", "returned a <class 'str'>; expected module:factory"),
        ("not_callable", "'not_callable' is a <class 'int'>; expected module:factory"),
        ("walk", r"user_environments.py has no 'walk'; did you mean Walk\?; expected module:factory"),
        ("unmakeable", r"factory failed with RuntimeError: no robot \(.*user_environments.py:\d+\)"),
        ("wants_arguments", "factory failed with TypeError: .*missing 1 required .* 'port'"),
        ("without_spaces", "asking it for its spaces, or closing it, failed with AttributeError"),
        ("huge_integers", "observations are int64 from -4611686018427387904 to .* compute with 32 bits"),
        ("nothing_to_see", r"observations of shape \(0,\) hold no numbers"),
    ],
)
def test_what_is_no_usable_environment_is_refused(factory, message):
    for call in (environment_spec, lambda *arguments: make_environment(*arguments, seed=0)):
        with pytest.raises(ConfigError, match=message):
            call(f"{HERE}:{factory}", EnvironmentConfig())


@pytest.mark.parametrize("name", ["no_such_module_here:make", ":make", "module:"])
def test_a_path_that_leads_nowhere_is_told(name):
    with pytest.raises(ConfigError, match=rf"{name!r}.*expected module:factory"):
        environment_spec(name, EnvironmentConfig())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noop_max": 1}, "noop_max=1: only Atari"),
        (
            {"gymnasium_workers": "fibres"},
            "gymnasium_workers is 'fibres', possible: serial, threads, processes",
        ),
        ({"num_threads": 2}, "num_threads=2: .* does not run in EnvPool's threads"),
        ({"observation_keys": ("a",)}, "observation_keys=a: .* is your own environment"),
    ],
)
def test_options_that_do_not_apply_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        environment_spec(WALK, EnvironmentConfig(**options))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_module_in_the_current_directory(tmp_path, monkeypatch, workers):
    module = f"walk_of_{workers}"
    (tmp_path / f"{module}.py").write_text(f"from {HERE} import Walk\n\ndef make():\n    return Walk()\n")
    monkeypatch.chdir(tmp_path)
    elsewhere = [path for path in sys.path if path not in ("", os.getcwd())]
    monkeypatch.setattr(sys, "path", elsewhere)
    trace = play(make(f"{module}:make", size=1, gymnasium_workers=workers), steps=2)
    assert trace[0].first.all()


def test_a_module_that_fails_is_told(tmp_path, monkeypatch):
    (tmp_path / "walk_that_fails.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match="'walk_that_fails' failed with ZeroDivisionError"):
        environment_spec("walk_that_fails:make", EnvironmentConfig())


@pytest.mark.parametrize("workers", WORKERS)
def test_observations_that_do_not_fit_their_space_are_an_error(workers):
    environment = make(f"{HERE}:misshapen", gymnasium_workers=workers)
    with pytest.raises(GorilaError, match=r"shape \(5,\), but its observation_space says \(2,\)"):
        play(environment, steps=1)
    environment.close()


def test_integers_of_64_bits_are_stored_as_such_of_32_where_these_hold_them():
    environment = make(f"{HERE}:small_integers")
    assert environment.spec.observation_dtype == np.int32
    assert environment.reset().observation.dtype == np.int32


@pytest.mark.parametrize("workers", ["serial", "threads"])
def test_a_factory_that_returns_one_environment_for_all_is_refused(workers):
    with pytest.raises(ConfigError, match="returned the same environment twice"):
        make(f"{HERE}:the_same_again", gymnasium_workers=workers)


class Returns(gymnasium.Env):
    """Returns what it was given, whatever that is."""

    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, of_reset: Any, of_step: Any):
        self.of_reset, self.of_step = of_reset, of_step

    def reset(self, **options: Any) -> Any:
        return self.of_reset

    def step(self, action: Any) -> Any:
        return self.of_step


SEEN = np.zeros(1, np.uint8)


@pytest.mark.parametrize(
    ("of_reset", "message"),
    [
        (SEEN, "mine: its reset returned a ndarray, not"),
        ((SEEN, {}, 1), "3 values, not"),
        (([0.5], {}), "an observation of float64, but its observation_space says uint8"),
    ],
)
def test_a_reset_that_returns_something_else_is_told(of_reset, message):
    with pytest.raises(GorilaError, match=message):
        CountedSteps(Returns(of_reset, None), "mine").reset()


@pytest.mark.parametrize(
    ("of_step", "message"),
    [
        (None, "mine: its step returned a NoneType, not"),
        ((SEEN, 0.0, True, {}), "4 values, not"),
        ((np.zeros(1, np.int64), 0.0, True, False, {}), "an observation of int64"),
        ((SEEN, "1.0", True, False, {}), "'1.0' as reward"),
        ((SEEN, None, True, False, {}), "None as reward"),
        ((SEEN, np.zeros(2), True, False, {}), r"array\(\[0., 0.\]\) as reward"),
        ((SEEN, np.nan, True, False, {}), "a reward of nan"),
        ((SEEN, np.float32(np.inf), True, False, {}), "a reward of inf"),
        ((SEEN, 0.0, None, False, {}), "None as terminated"),
        ((SEEN, 0.0, False, 0.5, {}), "0.5 as truncated"),
    ],
)
def test_a_step_that_returns_something_else_is_told(of_step, message):
    environment = CountedSteps(Returns((SEEN, {}), of_step), "mine")
    environment.reset()
    with pytest.raises(GorilaError, match=message):
        environment.step(0)


def test_an_observation_that_is_not_finite_is_told():
    """A recurrent network would carry it to the end of the episode."""
    environment = Returns(
        (np.zeros(2, np.float32), {}), (np.array([0, np.nan], np.float32), 0.0, True, False, {})
    )
    environment.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    counted = CountedSteps(environment, "mine")
    counted.reset()
    with pytest.raises(GorilaError, match="an observation with numbers that are not finite"):
        counted.step(0)


@pytest.mark.parametrize("reward", [1, True, np.int8(1), np.float16(1), np.ones(1), np.array(1)])
@pytest.mark.parametrize("end", [True, 1, np.True_, np.ones(1, bool)])
def test_numbers_of_every_kind_are_taken(reward, end):
    environment = CountedSteps(Returns((SEEN, {}), (SEEN, reward, end, end, {})), "mine")
    environment.reset()
    assert environment.step(0)[1:4] == (1, True, True)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_environment_that_loses_its_connection_is_no_process_that_died(workers):
    environment = make(f"{HERE}:unreachable", gymnasium_workers=workers)
    environment.reset()
    with pytest.raises(ConnectionError, match="robot gone"):
        environment.step(np.array([0, 1], np.int32))
    environment.close()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("actions", [[0, 1], [1, 0], [1, 1]])
def test_what_an_environment_raises_comes_out_as_it_is(workers, actions):
    environment = make(f"{HERE}:failing", gymnasium_workers=workers)
    environment.reset()
    with pytest.raises(RuntimeError, match="as it was written to"):
        environment.step(np.array(actions, np.int32))
    environment.close()
    environment.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_pictures(workers):
    environment = make(WALK, size=2, renderable=True, gymnasium_workers=workers)
    start = environment.reset().observation[0, 0]
    for walked in (0, 1, 2):
        picture = environment.render()
        assert picture.dtype == np.uint8
        np.testing.assert_array_equal(picture, np.full((7, 9, 3), start + walked))
        environment.step(np.array([1, 0], np.int32))
    environment.close()


def test_a_factory_without_pictures_shows_the_observation():
    environment = make(f"{HERE}:limited", renderable=True)
    environment.reset()
    picture = environment.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.min() == 0
    assert picture.max() == 255
    environment.close()


@pytest.mark.parametrize(("configured", "in_force"), [(0, 500), (100, 100), (1000, 500)])
def test_the_smaller_of_two_time_limits_is_recorded(configured, in_force):
    environment = make("tests.environments.test_gymnasium:cartpole", max_steps_per_episode=configured)
    assert environment.spec.settings["max_steps_per_episode"] == in_force
    environment.close()


def test_gymnasiums_own_environments_work():
    environment = make("tests.environments.test_gymnasium:cartpole", size=2, renderable=True)
    assert environment.spec.settings["max_steps_per_episode"] == 500
    environment.reset()
    assert environment.step(np.array([0, 1], np.int32)).reward.tolist() == [1, 1]
    environment.close()


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")
