"""The benchmarks of actor, learner and both together, at their smallest."""

from __future__ import annotations

import jax
import pytest

from benchmarks import actor, end_to_end, learner
from tests.benchmarks.in_process import run_benchmark

SMALLEST = ("--rounds=1", "--seconds=0.01", "--replay_backend=memory")


@pytest.fixture(scope="module", autouse=True)
def newer_cpu_runtime():
    """Starts jax before a benchmark could choose the older one, which aborts at plain convolutions."""
    jax.local_devices()


def test_an_actor_beside_its_bound(capsys, tmp_path):
    record, table = run_benchmark(
        actor, capsys, tmp_path, "--num_environments=2", "--preset=small", *SMALLEST
    )
    assert set(record["ratios"]) == {"actor_of_bound"}
    assert record["figures"]["actor_steps_per_second"] > 0
    assert "of the bound" in table


def test_a_learner_beside_one_on_a_resident_batch(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "CASES", {"nature_128": ("small", 4)})
    monkeypatch.setattr(learner, "convolutions_in_a_child", learner.measure_convolutions)
    record, _ = run_benchmark(learner, capsys, tmp_path, "--transitions=256", *SMALLEST)
    ratios = record["ratios"]
    assert ratios["live_of_resident"] == ratios["nature_128_live_of_resident"]
    assert "space_to_depth_speedup" in ratios


def test_the_share_of_the_machine_that_does_useful_work(capsys, tmp_path):
    record, _ = run_benchmark(end_to_end, capsys, tmp_path, *SMALLEST)
    ratios = record["ratios"]
    assert ratios["useful_share"] == pytest.approx(ratios["acting_share"] + ratios["learning_share"])
