"""Learning curves of workdirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots import plot_learning_curve
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.runtime.workdir import open_workdir
from gorila_jax.types import ConfigError, GorilaError


def _row(frames: int, **more: Any) -> dict[str, Any]:
    return {"frames": frames, "steps": frames // 4, "wall_seconds": frames / 100, **more}


def test_draws_one_or_several_runs(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, path in enumerate(runs):
        open_workdir(path, {"agent": "gorila", "environment": "Pong-v5", "run": {"seed": seed}}).close()
        with MetricsWriter(path) as writer:
            writer.write(_row(1000))
            for frames in range(2000, 9000, 1000):
                writer.write(_row(frames, episode_return_mean=-21 + frames / 4000))
    plot_learning_curve(runs[0], tmp_path / "one.png")
    plot_learning_curve(runs, tmp_path / "two.png")
    one, two = (tmp_path / "one.png").read_bytes(), (tmp_path / "two.png").read_bytes()
    assert one[:8] == two[:8] == b"\x89PNG\r\n\x1a\n"
    assert one != two


def test_refuses_what_is_no_run_or_has_no_episode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no workdir"):
        plot_learning_curve(tmp_path, tmp_path / "out.png")
    open_workdir(tmp_path / "a", {"run": {"seed": 1}}).close()
    with MetricsWriter(tmp_path / "a") as writer:
        writer.write(_row(4))
    with pytest.raises(GorilaError, match="no finished episode"):
        plot_learning_curve(tmp_path / "a", tmp_path / "out.png")


def _drawn(monkeypatch: pytest.MonkeyPatch, workdir: Path | list[Path], out: Path) -> list[Axes]:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    plot_learning_curve(workdir, out)
    return figures[0].axes


@pytest.mark.parametrize("alike", [True, False])
def test_those_that_explore_least_are_drawn_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    run = {"agent": "apex", "environment": "Pong-v5", "run": {"seed": 3}}
    open_workdir(tmp_path, run).close()
    with MetricsWriter(tmp_path) as writer:
        writer.write(_row(1000, episode_return_mean=-21.0))  # none of the least exploring has finished a game
        for frames in (2000, 3000):
            least = -20.0 if alike else frames / 1000
            columns = {"episode_return_least_exploring": least, "epsilon_least_exploring": 0.0012}
            writer.write(_row(frames, episode_return_mean=-20.0, **columns))
    for axes, unit in zip(_drawn(monkeypatch, tmp_path, tmp_path / "out.png"), (1, 6000), strict=True):
        mean, *others = axes.get_lines()
        assert mean.get_label() == "apex, seed 3"
        assert mean.get_xdata() == pytest.approx([1000 / unit, 2000 / unit, 3000 / unit])
        assert len(others) == (0 if alike else 1)
        for line in others:
            assert line.get_label() == "apex, seed 3: those that explore least (ε 0.0012)"
            assert line.get_xdata() == pytest.approx([2000 / unit, 3000 / unit])
            assert list(line.get_ydata()) == [2, 3]
            assert line.get_color() == mean.get_color()


def test_runs_that_differ_by_their_seed_alone_share_a_colour_and_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for number, (agent, seed) in enumerate([("r2d2", 1), ("apex", 1), ("r2d2", 2), ("r2d2", 5)]):
        paths.append(tmp_path / str(number))
        open_workdir(paths[-1], {"agent": agent, "environment": "Catch-v0", "run": {"seed": seed}}).close()
        with MetricsWriter(paths[-1]) as writer:
            writer.write(_row(1000, episode_return_mean=number))
    by_frames, by_minutes = _drawn(monkeypatch, paths, tmp_path / "out.png")
    (legend,) = by_frames.figure.legends  # one for both, and none that could lie over a curve
    assert [text.get_text() for text in legend.get_texts()] == ["r2d2, seeds 1, 2, 5", "apex, seed 1"]
    assert by_frames.get_legend() is by_minutes.get_legend() is None
    for axes in (by_frames, by_minutes):
        colors = [line.get_color() for line in axes.get_lines()]
        assert colors[0] == colors[2] == colors[3] != colors[1]
