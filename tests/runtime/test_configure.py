"""Which preset is chosen, what lies on top of it, and how that is told."""

from __future__ import annotations

import pytest

from gorila_jax.runtime.configure import describe, make_config
from gorila_jax.types import ConfigError


@pytest.mark.parametrize(
    ("environment", "preset"),
    [
        ("Pong-v5", "small"),
        ("breakout", "small"),
        ("Catch-v0", "toy"),
        ("CartPole-v1", "toy"),
        ("my.robot:make", "toy"),
    ],
)
@pytest.mark.parametrize("agent", ["dqn", "gorila", "apex"])
def test_the_environment_decides_and_paper_is_never_chosen_silently(agent, environment, preset):
    assert make_config(agent, environment).preset == preset


def test_a_named_preset_is_taken_and_overrides_lie_on_top():
    config = make_config("gorila", "pong", "toy", {"learner.batch_size": "48", "run.seed": 3})
    assert (config.agent, config.environment, config.preset) == ("gorila", "Pong-v5", "toy")
    assert (config.learner.batch_size, config.run.seed) == (48, 3)
    assert config.env.frame_stack == 1  # the preset's


def test_what_an_agent_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="apex has one"):
        make_config("apex", "Catch-v0", overrides={"learner.num_learners": 2})
    with pytest.raises(ConfigError, match="apex has one replay for all"):
        make_config("apex", "Catch-v0", overrides={"replay.layout": "local"})
    with pytest.raises(ConfigError, match="paper, small, toy"):
        make_config("gorila", "Catch-v0", "huge")


def test_every_value_is_told_with_where_it_comes_from():
    config = make_config("gorila", "Catch-v0", "toy", {"learner.batch_size": 48, "actor.epsilon_final": 0.02})
    lines = describe(config)
    assert lines[0] == "agent gorila, environment Catch-v0, preset toy"
    assert "  learner.batch_size = 48  (set for this run)" in lines
    assert "  actor.epsilon_final = 0.02  (set for this run)" in lines  # though the preset has another one
    assert "  env.frame_stack = 1  (the observation is the whole state)" in lines
    assert not any(line.startswith("  env.noop_max") for line in lines)  # as it always is
