"""Which preset is chosen, what lies on top of it, and how that is told."""

from __future__ import annotations

import pytest

from gorila_jax.runtime import configure
from gorila_jax.runtime.configure import PAPER_CORES, choose_atari_preset, describe, make_config
from gorila_jax.types import ConfigError


@pytest.mark.parametrize(
    ("cores", "preset"), [(1, "small"), (PAPER_CORES - 1, "small"), (PAPER_CORES, "paper")]
)
def test_on_atari_the_machine_decides(monkeypatch, cores, preset):
    assert choose_atari_preset(cores) == preset
    monkeypatch.setattr(configure.os, "cpu_count", lambda: cores)
    assert make_config("dqn", "Pong-v5").preset == preset


def test_an_unknown_number_of_cores_is_one(monkeypatch):
    monkeypatch.setattr(configure.os, "cpu_count", lambda: None)
    assert make_config("dqn", "Pong-v5").preset == "small"


@pytest.mark.parametrize("environment", ["Catch-v0", "CartPole-v1", "my.robot:make"])
def test_elsewhere_it_is_the_toy(monkeypatch, environment):
    monkeypatch.setattr(configure.os, "cpu_count", lambda: 64)
    assert make_config("gorila", environment).preset == "toy"


def test_a_named_preset_is_taken_and_overrides_lie_on_top():
    config = make_config("gorila", "pong", "toy", {"learner.batch_size": "48", "run.seed": 3})
    assert (config.agent, config.environment, config.preset) == ("gorila", "Pong-v5", "toy")
    assert (config.learner.batch_size, config.run.seed) == (48, 3)
    assert config.env.frame_stack == 1  # the preset's


def test_what_an_agent_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="uniformly"):
        make_config("gorila", "Catch-v0", overrides={"replay.priority_exponent": 0.6})
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
