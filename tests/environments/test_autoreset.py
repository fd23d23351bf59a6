import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import check_autoreset, make_environment
from gorila_jax.types import ConfigError, End, EnvironmentStep
from tests.doubles import CounterEnv, episode

EVERY_END = (End.GAME_OVER, End.TIME_LIMIT, End.LIFE_LOSS)


@pytest.mark.parametrize("end", EVERY_END)
def test_next_step_reset_passes(end):
    assert check_autoreset(CounterEnv([[episode(5, end)], [episode(7, end)]]))


@pytest.mark.parametrize("end", EVERY_END)
def test_same_step_reset_is_refused(end):
    environment = CounterEnv([[episode(5, end)], [episode(7, end)]], same_step_reset=True)
    with pytest.raises(ConfigError, match=r"Counter resets in the same step"):
        check_autoreset(environment)


def test_says_when_no_end_came():
    environment = CounterEnv([[episode(50)]])
    assert not check_autoreset(environment, max_steps=20)
    assert len(environment.actions) == 20


def test_an_empty_batch_is_refused():
    with pytest.raises(ConfigError, match="0 results for 1 environments"):
        check_autoreset(CounterEnv([[episode(5)]], empty_at=2))


class _Forging(CounterEnv):
    """Overwrites one field of every step."""

    def __init__(self, **fields: object):
        super().__init__([[episode(3)]])
        self._fields = fields

    def recv(self) -> EnvironmentStep:
        return super().recv()._replace(**self._fields)


def test_a_first_step_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="where no episode had ended"):
        check_autoreset(_Forging(first=np.array([True])))


def test_an_end_on_a_first_step_is_refused():
    class EndsAtOnce(CounterEnv):
        def recv(self) -> EnvironmentStep:
            step = super().recv()
            return step._replace(end=np.where(step.first, End.GAME_OVER, step.end).astype(np.uint8))

    with pytest.raises(ConfigError, match="ends with its first observation"):
        check_autoreset(EndsAtOnce([[episode(3)]]))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("Catch-v0", EnvironmentConfig()),
        ("Breakout-v5", EnvironmentConfig(max_frames_per_episode=40)),
        ("tests.environments.user_environments:limited", EnvironmentConfig()),
    ],
)
def test_real_environments_pass(name, config):
    environment = make_environment(name, config, seed=0, num_environments=1)
    assert check_autoreset(environment, max_steps=50)
    environment.close()
