"""Games whose frames go blank."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.types import ConfigError

STEPS, SIZE = 60, 8


def play(probability: float, seed: int = 1, training: bool = True):
    """Observations [STEPS + 1, SIZE, 84, 84] and everything else that the game says, action after action."""
    config = EnvironmentConfig(num_environments=SIZE, flicker_probability=probability, num_threads=1)
    environment = make_environment("Pong-v5", config, seed=seed, training=training)
    steps = [environment.reset()]
    steps += [environment.step(np.full(SIZE, t % 6, np.int32)) for t in range(STEPS)]
    environment.close()
    observations = np.stack([step.observation for step in steps])
    return observations, [step._replace(observation=None) for step in steps]


@pytest.mark.parametrize("training", [True, False])
def test_half_of_the_frames_are_blank_and_the_others_are_the_game_s(training):
    clear, said = play(0.0, training=training)
    flickering, still_said = play(0.5, training=training)
    blank = ~flickering.any(axis=(2, 3))
    np.testing.assert_array_equal(flickering[~blank], clear[~blank])
    # Four standard deviations of 61 * 8 draws; each environment flickers by itself, first frames too.
    assert blank.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(blank.size))
    assert len({column.tobytes() for column in blank.T}) == SIZE
    assert 0 < blank[0].sum() < SIZE
    for step, still in zip(said, still_said, strict=True):
        for field, other in zip(step[1:], still[1:], strict=True):
            np.testing.assert_array_equal(field, other)


def test_the_same_seed_blanks_the_same_frames_and_another_one_others():
    one, same, other = (~play(0.5, seed)[0].any(axis=(2, 3)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_it_is_part_of_the_protocol():
    config = EnvironmentConfig(flicker_probability=0.25)
    assert environment_spec("Pong-v5", config).settings["flicker_probability"] == 0.25
    with pytest.raises(ConfigError, match="only Atari games have this"):
        environment_spec("Catch-v0", config)
