"""What every benchmark prints, and that those there are run to their end. Nothing here asks how fast."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import json_line
from benchmarks.run_summary import MAX_POINTS
from gorila_jax.config import to_json_dict
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.types import GorilaError

REPOSITORY = Path(__file__).parents[2]


def _launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "XLA_FLAGS": ""},  # one device, whatever this process has
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert list(record) == ["benchmark", "ratios", "figures", "versions"]
    assert record["versions"]["libraries"]["jax"]
    return record


def test_json_is_one_line_with_the_four_parts() -> None:
    line = json_line("speed", {"share": 0.5}, {"steps": {"median": 3.0}, "name": "line\nbreak"})
    assert "\n" not in line
    record = json.loads(line)
    assert (record["benchmark"], record["ratios"]) == ("speed", {"share": 0.5})
    assert record["figures"] == {"steps": {"median": 3.0}, "name": "line\nbreak"}
    assert record["versions"]["libraries"]["jax"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_ratio_that_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(GorilaError, match="not finite: broken"):
        json_line("speed", {"fine": 1.0, "broken": value}, {})


def test_frames_per_second_measures_every_part(tmp_path: Path) -> None:
    done = _launch(
        "benchmarks.frames_per_second",
        "--environment=Catch-v0",
        "--replay_backend=memory",
        "--num_environments=4",
        "--rounds=2",
        "--seconds=0.3",
        f"--json={tmp_path / 'out.json'}",
    )
    record = _last_line(done)
    assert record == json.loads((tmp_path / "out.json").read_text())
    assert record["benchmark"] == "frames_per_second"
    assert {
        "policy_over_envpool",
        "actor_over_envpool",
        "actor_over_envpool_then_policy",
        "system_frames_over_envpool",
        "system_frames_over_actor",
        "system_updates_over_bare",
    } <= set(record["ratios"])
    for name, ratio in record["ratios"].items():
        assert ratio > 0, name
        assert math.isfinite(ratio), name
    settings = record["figures"].pop("settings")
    assert (settings["num_environments"], settings["replay_backend"], settings["rounds"]) == (4, "memory", 2)
    for name, figure in record["figures"].items():
        assert 0 < figure["lowest"] <= figure["median"] <= figure["highest"], name
    assert "system updates per second" in done.stdout


@pytest.mark.parametrize(
    ("flag", "message"), [("--environment=Catsh-v0", "Catch-v0"), ("stray", "'stray' is no flag")]
)
def test_frames_per_second_refuses_what_it_cannot_measure(flag: str, message: str) -> None:
    done = _launch("benchmarks.frames_per_second", flag)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def _write_run(workdir: Path, returns: list[float | None]) -> None:
    """A workdir with one row per return: 40 frames, 10 episodes and a minute each."""
    workdir.mkdir()
    config = make_config("dqn", "Catch-v0")
    (workdir / "config.json").write_text(json.dumps(to_json_dict(config)))
    (workdir / "versions.json").write_text(json.dumps([{"git_commit": "abc"}, {"git_commit": "def"}]))
    with MetricsWriter(workdir) as writer:
        for row, value in enumerate(returns, 1):
            numbers = {
                "frames": 40 * row,
                "steps": 10 * row,
                "updates": 2 * row,
                "episodes": 10 * row if value is not None else 0,
                "wall_seconds": 60.0 * row,
                "episode_return_mean": value,
                "episode_epsilon_mean": None if value is None else 0.25,
                "samples_per_insert": 4.0,
            }
            writer.write(numbers)


def test_learning_curve_of_a_long_and_a_short_run(tmp_path: Path) -> None:
    """The long one's best mean is a later one than that of few episodes; the short one has nothing better."""
    long = [None, 0.9, *(-0.5 for _ in range(600)), 0.5, 0.25]
    _write_run(tmp_path / "long", long)
    _write_run(tmp_path / "short", [None, -1.0, -0.75])
    out = tmp_path / "results"
    done = _launch(
        "benchmarks.learning_curve",
        f"--workdir={tmp_path / 'long'},{tmp_path / 'short'}",
        "--name=both",
        f"--out={out}",
    )
    record = _last_line(done)
    assert list(record["ratios"].values()) == [4.0, 4.0]
    assert [figures["final_return_mean"] for figures in record["figures"].values()] == [0.25, -0.75]
    assert (out / "both.png").read_bytes().startswith(b"\x89PNG")

    first, second = json.loads((out / "both.json").read_text())["runs"]
    rows = len(long)
    assert (first["frames"], first["updates"], first["minutes"]) == (40 * rows, 2 * rows, rows)
    assert (first["final_return_mean"], first["final_window_episodes"]) == (0.25, 100)
    assert (first["best_return_mean"], first["best_at_frames"]) == (0.5, 40 * (rows - 1))
    assert (second["best_return_mean"], second["best_window_episodes"]) == (-0.75, 30)
    assert first["configuration"]["agent"] == "dqn"
    assert [start["git_commit"] for start in first["versions"]] == ["abc", "def"]

    curve = first["curve"]
    assert {len(values) for values in curve.values()} == {MAX_POINTS}
    assert curve["frames"] == sorted(set(curve["frames"]))
    assert (curve["frames"][0], curve["frames"][-1]) == (40, 40 * rows)
    assert (curve["episode_return_mean"][0], curve["episode_return_mean"][-1]) == (None, 0.25)
    assert second["curve"]["minutes"] == [1.0, 2.0, 3.0]


def test_learning_curve_refuses_a_run_without_an_episode(tmp_path: Path) -> None:
    _write_run(tmp_path / "young", [None, None])
    done = _launch(
        "benchmarks.learning_curve", f"--workdir={tmp_path / 'young'}", f"--out={tmp_path / 'results'}"
    )
    assert done.returncode == 1
    assert "no finished episode" in done.stderr
    assert not (tmp_path / "results").exists()
