"""A task that needs a memory: the agent that has one solves it, the one without stays at chance."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.programs import run


@pytest.mark.pinned
@pytest.mark.learning
@pytest.mark.parametrize(
    ("agent", "lowest", "highest", "more"),
    [
        ("r2d2", 0.95, 1.0, ()),
        ("drqn", 0.95, 1.0, ("--config.sequence.length_steps=16",)),
        ("apex", 0.05, 0.45, ()),
    ],
)
def test_who_remembers_the_cue_names_it(tmp_path, agent, lowest, highest, more):
    """Of four cues one shows ten steps before it is asked for: chance is 0.25."""
    flags = (f"--agent={agent}", "--environment=benchmarks.memory_tasks:cue_recall", f"--workdir={tmp_path}")
    code, output = run(
        "train", *flags, "--seed=11", "--total_frames=30000", "--config.env.frame_stack=1", *more
    )
    assert code == 0, output
    code, output = run("evaluate", f"--workdir={tmp_path}", "--episodes=100")
    assert code == 0, output
    assert lowest <= json.loads(output.splitlines()[-1])["mean"] <= highest
