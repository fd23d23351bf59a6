import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, is_atari, resolve_name
from gorila_jax.types import ConfigError


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("pong", "Pong-v5"),
        ("PONG-v5", "Pong-v5"),
        ("Pong-v5", "Pong-v5"),
        ("space_invaders", "SpaceInvaders-v5"),
        ("Space Invaders", "SpaceInvaders-v5"),
        ("ms_pacman", "MsPacman-v5"),
        ("tetris", "Tetris-v5"),  # there is another Tetris
        ("catch", "Catch-v0"),
        ("cartpole", "CartPole-v1"),  # there is a v0
        ("CartPole-v0", "CartPole-v0"),
        ("my.module:factory", "my.module:factory"),
    ],
)
def test_names_resolve(typed, full):
    assert resolve_name(typed) == full


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pnog", "Pong-v5"),
        ("Pong-v4", "Pong-v5"),
        ("ALE/Breakout-v5", "Breakout-v5"),
        ("BreakoutNoFrameskip-v4", "Breakout-v5"),
        ("spaceinvader", "SpaceInvaders-v5"),
    ],
)
def test_a_wrong_name_is_told_close_ones(typed, meant):
    with pytest.raises(ConfigError, match=rf"{typed!r} is not known.*{meant}"):
        resolve_name(typed)


def test_a_name_like_no_other_is_told_what_there_is():
    with pytest.raises(ConfigError, match=r"try Pong-v5.*module:factory"):
        environment_spec("qqqqqqqq", EnvironmentConfig())


def test_is_atari():
    assert is_atari("pong")
    assert not is_atari("catch")
    assert not is_atari("my.module:pong")
    with pytest.raises(ConfigError):
        is_atari("qqqqqqqq")
