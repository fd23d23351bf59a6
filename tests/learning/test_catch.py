"""Every agent learns Catch, within its toy preset's own budget."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.programs import run

MANY = ("--num_actors=2", "--num_learners=2", "--num_shards=2")


@pytest.mark.learning
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--agent=dqn",), marks=pytest.mark.pinned),
        pytest.param(("--agent=gorila", *MANY, "--replay=local"), marks=pytest.mark.pinned),
        ("--agent=apex", "--num_actors=2", "--num_replay_servers=2"),
        pytest.param(("--agent=drqn",), marks=pytest.mark.pinned),
        ("--agent=r2d2", "--num_actors=2", "--num_replay_servers=2"),
    ],
    ids=["dqn", "gorila", "apex", "drqn", "r2d2"],
)
def test_an_agent_learns_catch(tmp_path, flags):
    code, output = run("train", "--environment=Catch-v0", *flags, "--seed=11", f"--workdir={tmp_path}")
    assert code == 0, output
    code, output = run("evaluate", f"--workdir={tmp_path}", "--episodes=100")
    assert code == 0, output
    result = json.loads(output.splitlines()[-1])
    assert result["mean"] >= 0.95
    assert len(result["returns"]) == 100
