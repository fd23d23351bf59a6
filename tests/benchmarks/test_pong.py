"""What the Pong benchmark reads off a run."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pong
from benchmarks.pong import Usage, progress_of, usage_figures


def test_growth_is_taken_once_replay_is_full():
    filling = [Usage(minute, 100 * minute, 10, 50, 0.5) for minute in range(1, 30)]
    full = [Usage(30 + minute, 4_000 + 10 * minute, 20, 60, 1.0) for minute in range(20)]
    figures = usage_figures(filling + full)
    assert figures["resident_growth_since_full"] == pytest.approx((4_185) / (4_005))
    assert figures["threads_growth_since_full"] == 1
    assert figures["file_descriptors_growth_since_full"] == 1
    assert figures["resident_gigabytes"] == pytest.approx(4_185e-9)
    assert usage_figures(filling) == {"resident_growth_since_full": None}


def test_evaluations_wait_for_games_of_little_exploration(tmp_path, monkeypatch):
    assert progress_of(tmp_path) == (-np.inf, 0.0)
    for name in ("metrics.csv", "episodes.csv"):
        (tmp_path / name).touch()
    monkeypatch.setattr(pong, "read_metrics", lambda path: {"replay_fill_share": np.array([0.5, 0.75])})
    games = {"epsilon": np.array([0.4, 0.01] * 12), "episode_return": np.arange(24.0)}
    monkeypatch.setattr(pong, "read_episodes", lambda path: games)
    assert progress_of(tmp_path) == (np.arange(5.0, 24.0, 2).mean(), 0.75)
    games["epsilon"][:8] = 0.4
    assert progress_of(tmp_path) == (-np.inf, 0.75)


def test_a_run_ends_with_a_checkpoint_that_other_seeds_confirm(tmp_path, monkeypatch, capsys):
    asked = []

    def evaluate(workdir, frames, seed):
        asked.append((frames, seed))
        return {"mean": {7_001: 17.0, 7_002: 18.5, 7_501: 17.5, 7_003: 18.0, 7_502: 19.0}[seed]}

    monkeypatch.setattr(pong, "evaluate", evaluate)
    monkeypatch.setattr(pong, "reaches_goal", lambda record: record["mean"] >= 18.0)  # no flags here
    scored = [pong.score_checkpoint(tmp_path, 100 * number, 7, number, start=0.0) for number in range(3)]
    assert [pong.is_confirmed(evaluation) for evaluation in scored] == [False, False, True]
    assert asked == [(0, 7_001), (100, 7_002), (100, 7_501), (200, 7_003), (200, 7_502)]
    assert scored[2]["confirmation"]["minutes"] >= scored[2]["minutes"] > 0
    assert scored[0]["confirmation"] is None
    assert "again, with other seeds, mean 17.50" in capsys.readouterr().err
    figures = pong.goal_figures(scored)
    assert (figures["mean_return"], figures["first_at_goal_confirmation"]) == (19.0, 17.5)
    assert figures["minutes_to_goal"] == scored[2]["confirmation"]["minutes"]
    assert figures["first_at_goal_minutes"] == scored[1]["minutes"]
    assert (figures["evaluations"], figures["not_confirmed"], figures["best_mean_return"]) == (3, 1, 18.5)
    unsolved = pong.goal_figures(scored[:2])
    assert (unsolved["minutes_to_goal"], unsolved["mean_return"], unsolved["not_confirmed"]) == (
        None,
        None,
        1,
    )
    assert pong.goal_figures([])["first_at_goal_minutes"] is None
