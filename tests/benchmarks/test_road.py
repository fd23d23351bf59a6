"""The benchmarks of actor, learner and both together, at their smallest."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from benchmarks import actor, convolutions, end_to_end, learner
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import GorilaError
from tests.benchmarks.in_process import run_benchmark

SMALLEST = ("--rounds=1", "--seconds=0.01", "--replay_backend=memory")


def test_an_actor_beside_its_bound(capsys, tmp_path):
    record, table = run_benchmark(
        actor, capsys, tmp_path, "--num_environments=2", "--actors=2", "--preset=small", *SMALLEST
    )
    assert set(record["ratios"]) == {"actor_of_bound", "actors_2_of_one"}
    assert record["figures"]["actors_2_busy_threads"]["median"] > 0
    assert record["figures"]["actor_steps_per_second"] > 0
    assert "of the bound" in table


def test_a_learner_beside_one_on_a_resident_batch(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "CASES", {"nature_128": ("small", 4)})
    record, _ = run_benchmark(learner, capsys, tmp_path, "--steps=256", *SMALLEST)
    ratios = record["ratios"]
    assert ratios["live_of_resident"] == ratios["nature_128_live_of_resident"]
    assert ratios["space_to_depth_speedup"] > 0
    assert ratios["space_to_depth_speedup_in_newer_runtime"] > 0


def test_a_learner_of_sequences_beside_one_on_a_resident_batch(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "SEQUENCE_CASES", {"small_4": ("small", 2)})
    record, table = run_benchmark(learner, capsys, tmp_path, "--agent=r2d2", "--steps=256", *SMALLEST)
    ratios, figures = record["ratios"], record["figures"]
    assert ratios["live_of_resident"] == ratios["small_4_live_of_resident"]
    updates = figures["small_4_live_updates_per_second"]["median"]
    assert figures["small_4_live_sequences_per_second"]["median"] == pytest.approx(2 * updates)
    assert figures["small_4_live_steps_per_second"]["median"] == pytest.approx(2 * 20 * updates)
    frame = 84 * 84
    assert frame < figures["saved_bytes_per_step_of_frames_alone"] < 1.1 * frame  # nothing is packed here
    assert ratios["saved_bytes_of_frames"] > 1
    assert "steps per second" in table


def test_a_process_that_cannot_measure_convolutions_ends_the_benchmark(capfd):
    config = make_config("apex", "Pong-v5", "small", {})
    config = dataclasses.replace(config, environment="Nonesuch-v5")
    with contextlib.ExitStack() as stack:
        arms = convolutions.newer_runtime_arms(config, stack)
        for arm in arms:  # asked while it is still alive, and after its end
            with pytest.raises(GorilaError, match="ended with code 2"):
                arm(0.0)
    assert "Nonesuch-v5" in capfd.readouterr().err


def test_the_share_of_the_machine_that_does_useful_work(capsys, tmp_path):
    record, _ = run_benchmark(end_to_end, capsys, tmp_path, *SMALLEST)
    ratios = record["ratios"]
    assert ratios["useful_share"] == pytest.approx(ratios["acting_share"] + ratios["learning_share"])
