"""What every environment keeps to, the double that stands in for them in other tests included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.runtime.waits import TimedEnvironment, Waits
from gorila_jax.types import End, Environment, GorilaError
from tests.doubles import CounterEnv, episode

GAMMA = 0.9


def _counter() -> Environment:
    script = [episode(3), episode(1, End.TIME_LIMIT), episode(2, End.LIFE_LOSS)]
    return CounterEnv([script, script[1:], [episode(4)]], GAMMA)


def _real(name: str, **options: object) -> Callable[[], Environment]:
    config = EnvironmentConfig(num_environments=3, discount=GAMMA, **options)
    return lambda: make_environment(name, config, seed=4)


MAKERS = {
    "double": _counter,
    "timed": lambda: TimedEnvironment(_counter(), Waits(), "environment"),
    "atari": _real("Breakout-v5", max_frames_per_episode=160),
    "flickering": _real("Breakout-v5", max_frames_per_episode=160, flicker_probability=0.5),
    "named arrays": _real(
        "MiniGrid-MemoryS7-v0", observation_keys=("image", "direction"), max_steps_per_episode=20
    ),
    "catch": _real("Catch-v0"),
    "cartpole": _real("CartPole-v1", max_steps_per_episode=15),
    "user": _real("tests.environments.user_environments:Walk", max_steps_per_episode=9),
    "user's threads": _real(
        "tests.environments.user_environments:Walk", max_steps_per_episode=9, gymnasium_workers="threads"
    ),
    "user's processes": _real(
        "tests.environments.user_environments:Walk", max_steps_per_episode=9, gymnasium_workers="processes"
    ),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Environment]:
    return MAKERS[request.param]


@pytest.fixture
def environment(make: Callable[[], Environment]) -> Iterator[Environment]:
    made = make()
    yield made
    made.close()
    made.close()  # harmless


def test_steps_are_as_described(environment):
    spec, size = environment.spec, environment.num_environments
    assert size == 3
    random = np.random.default_rng(0)
    step = environment.reset()
    assert step.first.all()
    assert not step.end.any()
    np.testing.assert_array_equal(step.discount, np.full(3, GAMMA, np.float32))
    ended = np.zeros(size, bool)
    ends_seen = 0
    for _ in range(120):
        step = environment.step(random.integers(spec.num_actions, size=size, dtype=np.int32))
        assert step.observation.shape == (size, *spec.observation_shape)
        assert step.observation.dtype == spec.observation_dtype
        assert [field.shape for field in step[1:]] == [(size,)] * 4
        assert [field.dtype for field in step[1:]] == [np.float32, np.float32, np.uint8, np.bool_]
        np.testing.assert_array_equal(step.first, ended)
        assert not step.reward[step.first].any()
        assert not step.end[step.first].any()
        bootstraps = np.isin(step.end, (End.NONE, End.TIME_LIMIT))
        np.testing.assert_array_equal(step.discount, np.where(bootstraps, np.float32(GAMMA), np.float32(0)))
        ended = step.end != End.NONE
        ends_seen += ended.sum()
    assert ends_seen > 3


def test_the_action_after_an_end_is_ignored(make):
    one, other = make(), make()
    random = np.random.default_rng(1)
    first, steps = np.ones(3, bool), [one.reset(), other.reset()]
    ignored = 0
    for _ in range(60):
        for ours, theirs in zip(*steps, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        first = steps[0].end != End.NONE
        actions = random.integers(one.spec.num_actions, size=3, dtype=np.int32)
        changed = np.where(first, (actions + 1) % one.spec.num_actions, actions).astype(np.int32)
        ignored += first.sum()
        steps = [one.step(actions), other.step(changed)]
    assert ignored > 2
    one.close()
    other.close()


def test_what_was_returned_stays_as_it_is(environment):
    given = [environment.reset()]
    for _ in range(30):
        given.append(environment.step(np.ones(3, np.int32)))
        if len(given) == 10:
            copies = [[field.copy() for field in step] for step in given]
    for step, copy in zip(given, copies, strict=False):
        for ours, kept in zip(step, copy, strict=True):
            np.testing.assert_array_equal(ours, kept)


def test_the_two_halves_are_a_step(make):
    whole, halves = make(), make()
    random = np.random.default_rng(2)
    steps = [whole.reset(), halves.reset()]
    for _ in range(60):
        for ours, theirs in zip(*steps, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        actions = random.integers(whole.spec.num_actions, size=3, dtype=np.int32)
        halves.send(actions)
        actions_then = actions.copy()
        actions[:] = 0  # they are the caller's again as soon as they are sent
        steps = [whole.step(actions_then), halves.recv()]
    whole.close()
    halves.close()


def test_calls_that_do_not_fit_in_are_refused_and_change_nothing(environment):
    nothing = np.zeros(3, np.int32)
    for call in (lambda: environment.step(nothing), lambda: environment.send(nothing)):
        with pytest.raises(GorilaError, match="step before reset"):
            call()
    with pytest.raises(GorilaError, match="recv without a step under way: send actions first"):
        environment.recv()
    environment.reset()
    with pytest.raises(GorilaError, match="recv without a step under way"):
        environment.recv()
    for _ in range(5):
        environment.send(nothing)
        for call, name in (
            (lambda: environment.send(nothing), "send"),
            (lambda: environment.step(nothing), "send"),
            (environment.reset, "reset"),
        ):
            with pytest.raises(GorilaError, match=f"{name} while a step is under way: recv it first"):
                call()
        assert len(environment.recv().first) == 3
    assert len(environment.step(nothing).first) == 3


def test_it_closes_with_a_step_under_way(environment):
    environment.reset()
    environment.send(np.zeros(3, np.int32))
    environment.close()
    for call in (environment.reset, environment.recv, lambda: environment.send(np.zeros(3, np.int32))):
        with pytest.raises(GorilaError, match="the environment is closed"):
            call()


def test_actions_that_do_not_exist_are_refused(environment):
    environment.reset()
    for actions in (
        np.full(3, environment.spec.num_actions, np.int32),
        np.full(3, -1, np.int32),
        np.zeros(2, np.int32),
        np.zeros(3, np.float32),
    ):
        with pytest.raises(ValueError, match="action"):
            environment.step(actions)
    environment.step(np.zeros(3, np.int32))


@pytest.mark.parametrize("key", [key for key in MAKERS if key not in ("double", "timed")])
def test_the_spec_is_known_beforehand(key):
    environment = MAKERS[key]()
    keys = ("image", "direction") if key == "named arrays" else ()
    config = EnvironmentConfig(discount=GAMMA, observation_keys=keys)
    limits = {
        "atari": {"max_frames_per_episode": 160},
        "flickering": {"max_frames_per_episode": 160, "flicker_probability": 0.5},
        "named arrays": {"max_steps_per_episode": 20, "observation_keys": ("image", "direction")},
        "cartpole": {"max_steps_per_episode": 15},
    }
    for user in ("user", "user's threads", "user's processes"):
        limits[user] = {"max_steps_per_episode": 9}
    expected = environment_spec(environment.spec.name, EnvironmentConfig(**limits.get(key, {})))
    assert environment.spec == expected
    if key in limits:
        assert expected != environment_spec(environment.spec.name, config)
    environment.close()
