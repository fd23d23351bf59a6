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
