"""Films show the game itself, picture by picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest

from gorila_jax.evaluation import video
from gorila_jax.evaluation.evaluator import evaluate
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import ConfigError, End
from tests.evaluation.runs import atari_config, initial_parameters, toy_config


@pytest.fixture(autouse=True)
def _no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `launchers.play` has it."""
    monkeypatch.setenv("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")


def _milliseconds(path: Path) -> int:
    """How long a GIF lasts; pictures equal to the one before are not stored again but shown longer."""
    return sum(iio.immeta(path, index=index)["duration"] for index in range(len(iio.imread(path))))


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_pong_in_its_own_colours(tmp_path: Path, suffix: str) -> None:
    config = atari_config("Pong-v5")
    path = tmp_path / ("film" + suffix)
    recording = video.record(config, initial_parameters(config), path, epsilon=1.0, max_steps=60)
    assert recording.path == str(path)
    assert recording.pictures == 61
    assert recording.games == ()
    assert recording.cut_score in (0, -1)
    film = iio.imread(path)
    if suffix == ".gif":
        assert _milliseconds(path) == pytest.approx(61 * 1000 / 15, abs=61 * 10)
        assert len(film) > 30
        assert film.shape[1:] == (210, 160, 3)
    else:
        assert film.shape == (61, 210, 160, 3)
    last = film[-1].astype(int)
    assert np.abs(last[..., 0] - last[..., 2]).max() > 50  # not grey
    assert np.abs(film[0].astype(int) - last).max() > 50  # things move
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("suffix", "agent"), [(".mp4", "dqn"), (".gif", "dqn"), (".gif", "r2d2")])
def test_whole_games_of_an_environment_without_pictures(tmp_path: Path, suffix: str, agent: str) -> None:
    config = make_config(agent, "Catch-v0")
    parameters = initial_parameters(config)
    path = tmp_path / ("film" + suffix)
    recording = video.record(config, parameters, path, episodes=3, seed=2)
    film = iio.imread(path)
    # The first observation of each game, and one after each of its steps.
    assert len(film) == recording.pictures == 3 + sum(game.steps for game in recording.games)
    assert film.shape[3] == 3
    assert film.max() > 200 > 50 > film.min()
    assert recording.cut_score is None
    played = evaluate(config, parameters, episodes=3, num_environments=1, seed=2)
    assert recording.games == played.games


def test_a_game_ends_by_its_frame_cap(tmp_path: Path) -> None:
    config = atari_config("Breakout-v5", env__max_frames_per_episode=80)
    recording = video.record(config, initial_parameters(config), tmp_path / "film.gif")
    assert [(game.steps, game.end) for game in recording.games] == [(20, End.TIME_LIMIT)]


def test_speed(tmp_path: Path) -> None:
    config = atari_config("Pong-v5")
    for name, fps, wanted in (("a.mp4", 0.0, 15), ("b.mp4", 30.0, 30)):
        video.record(config, initial_parameters(config), tmp_path / name, fps=fps, max_steps=10)
        assert iio.immeta(tmp_path / name)["fps"] == pytest.approx(wanted)
    video.record(config, initial_parameters(config), tmp_path / "c.gif", fps=20.0, max_steps=10)
    assert _milliseconds(tmp_path / "c.gif") == 11 * 50


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "arguments", "message"),
        [
            ("film.avi", {}, r"end in \.mp4 or \.gif"),
            ("film", {}, r"end in \.mp4 or \.gif"),
            ("absent/film.gif", {}, "no directory"),
            ("film.gif", {"episodes": 0}, "episodes=0"),
            ("film.gif", {"fps": -1.0}, "fps=-1"),
            ("film.gif", {"max_steps": -1}, "max_steps=-1"),
            ("film.gif", {"epsilon": 2.0}, "epsilon=2"),
        ],
    )
    def test_before_anything_is_played(
        self,
        tmp_path: Path,
        name: str,
        arguments: dict[str, Any],
        message: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        config = toy_config()
        monkeypatch.setattr(video, "_play", None)
        with pytest.raises(ConfigError, match=message):
            video.record(config, initial_parameters(config), tmp_path / name, **arguments)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_there_stays_unless_asked(self, tmp_path: Path) -> None:
        config = toy_config()
        path = tmp_path / "film.gif"
        path.write_text("precious")
        with pytest.raises(ConfigError, match="exists already"):
            video.record(config, initial_parameters(config), path)
        assert path.read_text() == "precious"
        video.record(config, initial_parameters(config), path, overwrite=True)
        assert len(iio.imread(path)) > 1

    def test_a_game_that_fails_leaves_what_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: Any, observation: Any, **more: Any) -> None:
            raise RuntimeError("in the middle")

        monkeypatch.setattr(video.Policy, "__call__", fail)
        path = tmp_path / "film.gif"
        path.write_text("precious")
        config = toy_config()
        with pytest.raises(RuntimeError, match="in the middle"):
            video.record(config, initial_parameters(config), path, overwrite=True)
        assert [each.name for each in tmp_path.iterdir()] == ["film.gif"]
        assert path.read_text() == "precious"
