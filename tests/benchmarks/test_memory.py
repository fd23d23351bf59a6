"""The tasks that need a memory, and the benchmark that compares agents on them."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from gymnasium.utils.env_checker import check_env

from benchmarks import memory, programs
from benchmarks.memory_tasks import CUES, DELAY_STEPS, cue_recall, hidden_cartpole


def play(policy, episodes=200):
    """Mean return; `policy` is given the observations of the episode so far."""
    environment, returns = cue_recall(), []
    for seed in range(episodes):
        observation, _ = environment.reset(seed=seed)
        seen, ended, total = [observation], False, 0.0
        while not ended:
            observation, reward, ended, truncated, _ = environment.step(policy(seen))
            seen.append(observation)
            total += reward
            assert not truncated
        assert len(seen) == DELAY_STEPS + 2
        returns.append(total)
    return np.mean(returns)


def test_who_remembers_the_cue_names_it_and_who_does_not_is_at_chance():
    assert play(lambda seen: int(np.argmax(seen[0][:CUES]))) == 1.0
    random = np.random.default_rng(0)
    assert play(lambda seen: int(random.integers(CUES))) == pytest.approx(1 / CUES, abs=0.1)


def test_the_cue_shows_once_and_is_asked_for_at_the_end():
    environment = cue_recall()
    first, _ = environment.reset(seed=3)
    assert first[:CUES].sum() == 1
    assert first[CUES] == 0
    later = [environment.step(0)[0] for _ in range(DELAY_STEPS)]
    assert not any(observation[:CUES].any() for observation in later)
    assert [observation[CUES] for observation in later] == [0] * (DELAY_STEPS - 1) + [1]


def test_velocities_are_hidden_and_the_rest_is_cartpole():
    hidden, whole = hidden_cartpole(), gymnasium.make("CartPole-v1")
    got, expected = hidden.reset(seed=1)[0], whole.reset(seed=1)[0]
    for _ in range(5):
        np.testing.assert_array_equal(got, expected[[0, 2]])
        got, expected = hidden.step(1)[0], whole.step(1)[0]


def test_the_cue_task_is_a_proper_environment():
    check_env(cue_recall(), skip_render_check=True)


def test_every_agent_gets_the_same_steps_and_its_own_settings(capsys, monkeypatch):
    ran = []

    def program(launcher, *arguments):
        ran.append((launcher, arguments))
        agent = ran[-2 if launcher == "evaluate" else -1][1][0]
        return "said\n" + json.dumps({"mean": 1.0 if "r2d2" in agent else 0.25})

    monkeypatch.setattr(programs, "program", program)
    monkeypatch.setattr(memory, "list_checkpoints", lambda directory: [500])
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(agents=["r2d2", "drqn", "apex"], seeds=["1", "2"], frames=500):
        memory.main()
    *table, line = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record["ratios"] == {"r2d2_solved": 1, "drqn_solved": 0, "apex_solved": 0}
    trained = [arguments for launcher, arguments in ran if launcher == "train"]
    assert [arguments[0] for arguments in trained] == [
        f"--agent={agent}" for agent in ("r2d2", "r2d2", "drqn", "drqn", "apex", "apex")
    ]
    assert all(
        {"--total_frames=500", "--config.env.frame_stack=1"} <= set(arguments) for arguments in trained
    )
    own = ["--config.sequence.length_steps=16" in arguments for arguments in trained]
    assert own == [False, False, True, True, False, False]
    assert any("drqn, seed 2" in row for row in table)


def test_the_best_of_the_newest_checkpoints_is_scored_again_with_other_seeds(capsys, monkeypatch):
    asked = []

    def program(launcher, *arguments):
        if launcher == "train":
            assert "--config.checkpoint.keep=10" in arguments
            return ""
        options = dict(argument.split("=", 1) for argument in arguments)
        asked.append(options)
        by_checkpoint = {"100": 210.0, "200": 500.0, "300": 90.0}
        lucky = 0.0 if options["--episodes"] == "20" else -30.0
        return json.dumps({"mean": by_checkpoint[options["--checkpoint"]] + lucky})

    monkeypatch.setattr(programs, "program", program)
    monkeypatch.setattr(memory, "list_checkpoints", lambda directory: [100, 200, 300])
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(task="hidden_cartpole", agents=["r2d2"], seeds=["1"], frames=300):
        memory.main()
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["figures"]["runs"][0]["mean"] == 470.0
    assert record["ratios"] == {"r2d2_solved": 1}
    *compared, scored = asked
    assert [options["--checkpoint"] for options in compared] == ["100", "200", "300"]
    assert scored["--checkpoint"] == "200"
    assert scored["--episodes"] == "100"
    assert scored["--seed"] not in {options["--seed"] for options in compared}
