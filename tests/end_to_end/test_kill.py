"""SIGKILL at random moments: every start takes up a whole checkpoint, and counters never fall behind it."""

from __future__ import annotations

import os
import random
import time

import pytest

from gorila_jax import checkpoints
from gorila_jax.runtime.metrics import read_metrics
from tests.end_to_end.programs import start, wait_for

NUM_KILLS = int(os.environ.get("GORILA_KILLS", "5"))  # 20 before a release


@pytest.mark.slow
@pytest.mark.timeout(180 * NUM_KILLS)
def test_kills_lose_nothing_but_the_time_since_the_last_checkpoint(tmp_path):
    chance = random.Random(0)
    workdir = tmp_path / "w"
    previous: dict[str, int] = {"frames": -1, "updates": -1, "generation": -1}
    for kill in range(NUM_KILLS):
        process = start(
            "train",
            "--agent=gorila",
            "--environment=Catch-v0",
            "--num_learners=2",
            "--num_shards=2",
            "--replay_backend=memory",
            "--total_frames=100000000",
            "--config.checkpoint.period_seconds=0.05",
            "--config.replay.learning_starts_steps=100",
            f"--workdir={workdir}",
        )
        before = previous["frames"]

        def advanced(before: int = before) -> bool:
            found = checkpoints.list_checkpoints(workdir / "checkpoints")
            return bool(found) and found[-1] > before

        wait_for(advanced, process)
        time.sleep(chance.uniform(0, 0.3))  # the random moment itself
        process.kill()
        output, _ = process.communicate()
        assert kill == 0 or f"resuming {workdir} at {before:,} frames" in output, output
        frames, state = checkpoints.restore_latest(workdir / "checkpoints")
        counters = state["counters"]
        assert counters["frames"] == frames > previous["frames"]
        assert counters["updates"] >= previous["updates"]
        assert counters["generation"] == previous["generation"] + 1 == kill
        assert state["server"]["counters"]["accepted"] >= counters["updates"]
        previous = counters
    assert (read_metrics(workdir)["frames"] >= 0).all()
