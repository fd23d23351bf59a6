"""The benchmark of slow environments drives a whole actor, and looks at the workers it got."""

from __future__ import annotations

import pytest

from benchmarks import scaling
from tests.benchmarks.in_process import run_benchmark

SMALLEST = ("--environment_counts=1,2", "--backend=memory", "--rounds=1", "--seconds=0.1")


@pytest.mark.parametrize("workers", ["serial", "threads"])
def test_two_environments_beside_one(capsys, tmp_path, workers):
    record, _ = run_benchmark(scaling, capsys, tmp_path, f"--workers={workers}", *SMALLEST)
    assert set(record["ratios"]) == {"efficiency_2", "of_sleeps_1", "of_sleeps_2"}
    assert record["figures"]["settings"]["workers"] == workers
    assert set(record["figures"]["start_2"]) == {"seconds"}


def test_threads_are_the_default():
    assert scaling.WORKERS.default == "threads"


@pytest.mark.slow
def test_every_environment_in_a_process(capsys, tmp_path):
    record, _ = run_benchmark(scaling, capsys, tmp_path, "--workers=processes", *SMALLEST)
    assert record["figures"]["start_2"]["worker_megabytes"] > 1
    assert record["figures"]["start_2"]["workers_with_jax"] == 0
