"""From the lines that a driver writes to a curve, and from the curve to figures."""

from __future__ import annotations

import io
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.curves import MAX_POINTS, cut, frames_per_second, plot, read_lines, summarise, thin
from benchmarks.peers.record import PERIOD_S, Recorder
from tests.benchmarks.peers.lines import episode, progress, start


def test_what_a_recorder_writes_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    recorder = Recorder(minutes=0.0, settings={"batch_size": 32}, packages=("numpy",))
    print("a library's chatter")
    recorder.episode(400, -21.0, 1.0)
    recorder.episode(800, -19.0, 0.5)
    assert recorder.is_over()
    recorder.progress(840, 3, 0.5)
    story = read_lines(out.getvalue().splitlines())
    assert "chatter" not in out.getvalue()
    assert story.settings == {"batch_size": 32}
    assert story.versions["numpy"] == np.__version__
    assert {name: values.tolist() for name, values in story.curve.items() if name != "seconds"} == {
        "frames": [840],
        "updates": [3],
        "episodes": [2],
        "return_mean": [(-21 + -19) / 2],
        "epsilon_mean": [(1.0 + 0.5) / 2],
    }


def test_progress_is_written_only_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    out = sys.stdout
    assert isinstance(out, io.StringIO)
    recorder = Recorder(minutes=1.0, settings={}, packages=())
    for passed in (0.0, PERIOD_S - 1, PERIOD_S, PERIOD_S + 1, 2 * PERIOD_S, 60.0):
        now = 100.0 + passed
        recorder.progress(int(passed), 0, 1.0)
        assert recorder.is_over() == (passed == 60.0)
    assert read_lines(out.getvalue().splitlines()).curve["seconds"].tolist() == [PERIOD_S, 2 * PERIOD_S, 60.0]


def test_a_row_has_the_mean_of_the_last_hundred_games_until_then() -> None:
    lines = [progress(1, 4)]
    lines += [episode(2, -21.0, epsilon=1.0)] * 100
    lines += [progress(3, 8)]
    lines += [episode(4, 1.0, epsilon=0.0)] * 25
    lines += [progress(5, 12), episode(6, 21.0)]
    curve = read_lines(lines).curve
    assert curve["episodes"].tolist() == [0, 100, 125]
    assert math.isnan(curve["return_mean"][0])
    assert curve["return_mean"][1:].tolist() == [-21, (75 * -21 + 25 * 1) / 100]
    assert curve["epsilon_mean"][1:].tolist() == [1, 75 / 100]


def test_other_prints_and_a_line_cut_short_are_skipped() -> None:
    chatter = ["A.L.E: Arcade Learning Environment", "[1, 2]", '{"loss": 1.0}', ""]
    story = read_lines([*chatter, start(seed=3), progress(5, 40), progress(10, 80)[:-9]])
    assert story.curve["frames"].tolist() == [40]
    assert story.settings == {"seed": 3}


def test_a_driver_that_wrote_nothing_has_a_curve_without_rows(tmp_path: Path) -> None:
    curve = read_lines([]).curve
    assert {len(values) for values in curve.values()} == {0}
    assert summarise(curve)["frames"] == 0
    assert set(map(len, thin(curve).values())) == {0}
    plot({"silent": curve}, "nothing", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_speeds_are_those_of_the_whole_run_and_of_learning() -> None:
    lines = [progress(10, 4000), progress(20, 8000, updates=5), progress(60, 16_000, updates=105)]
    summary = summarise(read_lines(lines).curve)
    assert summary["frames_per_second"] == pytest.approx(16_000 / 60, rel=1e-5)
    assert summary["learning_since_minutes"] == pytest.approx(20 / 60, rel=1e-5)
    assert summary["learning_frames_per_second"] == (16_000 - 8000) / (60 - 20)
    assert summary["learning_updates_per_second"] == (105 - 5) / (60 - 20)
    assert (summary["minutes"], summary["frames"], summary["updates"]) == (1.0, 16_000, 105)


def test_a_run_that_never_learned_has_no_learning_figures() -> None:
    summary = summarise(read_lines([progress(10, 4000), progress(20, 8000)]).curve)
    assert summary["frames_per_second"] == 400
    assert summary["learning_frames_per_second"] is None
    assert summary["learning_since_minutes"] is None
    assert summary["final_return_mean"] is None


def test_the_best_mean_is_one_of_a_hundred_games_where_there_are_any() -> None:
    lucky = [episode(1, 21.0), progress(5, 4)]
    full = [*lucky, *[episode(6, -20.0)] * 100, progress(10, 8)]
    full += [*[episode(11, -21.0)] * 100, progress(15, 12)]
    assert summarise(read_lines(lucky).curve)["best_return_mean"] == 21
    summary = summarise(read_lines(full).curve)
    assert (summary["best_return_mean"], summary["final_return_mean"]) == (-20, -21)
    assert summary["best_at_minutes"] == pytest.approx(10 / 60, rel=1e-5)
    assert summary["final_window_episodes"] == 100


def test_curves_end_with_the_minutes_of_the_run() -> None:
    curve = read_lines([progress(seconds, seconds) for seconds in range(5, 200, 5)]).curve
    assert cut(curve, minutes=1.0)["seconds"][-1] == 60 + PERIOD_S
    assert cut(curve, minutes=100.0)["seconds"][-1] == 195


def test_a_thin_curve_keeps_both_ends() -> None:
    curve = read_lines([progress(seconds, 4 * seconds) for seconds in range(1, 1001)]).curve
    thinned = thin(curve)
    assert {len(values) for values in thinned.values()} == {MAX_POINTS}
    assert (thinned["frames"][0], thinned["frames"][-1]) == (4, 4000)
    assert thinned["return_mean"] == [None] * MAX_POINTS


def test_frames_per_second_over_minutes() -> None:
    """600 in the first two minutes, 60 in the third."""
    marks = [(seconds, 600 * seconds) for seconds in range(5, 121, 5)]
    marks += [(seconds, 600 * 120 + 60 * (seconds - 120)) for seconds in range(125, 601, 5)]
    minutes, speeds = frames_per_second(read_lines([progress(*mark) for mark in marks]).curve)
    assert minutes.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]
    np.testing.assert_allclose(speeds, [600, 600, *[60] * 8])
