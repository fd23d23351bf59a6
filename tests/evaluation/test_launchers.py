"""The programs, as a shell sees them: exit codes, the last line, and what they need to be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import jax
import pytest

from gorila_jax.evaluation.evaluator import evaluate
from tests.evaluation.runs import initial_parameters, save_run, toy_config

REPOSITORY = Path(__file__).parents[2]

_WITHOUT_REPLAY_SERVER = """
import runpy, sys
sys.modules["reverb"] = sys.modules["tensorflow"] = None  # importing them fails, as where they are missing
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def _launch(*arguments: str, devices: int = 1) -> subprocess.CompletedProcess[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_REPLAY_SERVER, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = toy_config()
    return save_run(tmp_path_factory.mktemp("runs") / "catch", config, initial_parameters(config))


def test_evaluate_needs_only_the_workdir(workdir: Path) -> None:
    """No replay server or TensorFlow, and not the number of devices that this process has."""
    done = _launch("launchers.evaluate", f"--workdir={workdir}", "--episodes=20", "--seed=3", devices=4)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    config = toy_config()
    expected = evaluate(config, initial_parameters(config), episodes=20, seed=3)
    assert record["returns"] == [game.score for game in expected.games]
    assert record["mean"] == expected.mean
    assert record["standard_deviation"] == expected.standard_deviation
    assert (record["epsilon"], record["seed"], record["parameters_version"]) == (0.0, 3, 7)
    assert record["versions"]["libraries"]["jax"]
    assert len(record["versions"]["devices"]) == 4 != len(jax.local_devices())
    assert done.stderr.count("score") == 20  # one line per game


def test_play_writes_a_film(workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "")
    path = tmp_path / "film.mp4"
    done = _launch("launchers.play", f"--workdir={workdir}", f"--video={path}")
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
    score, written = done.stdout.splitlines()
    assert score in ("score 1 after 9 steps", "score -1 after 9 steps")
    assert written == f"{path}: 10 pictures"
    monkeypatch.setenv("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")  # for reading it here
    assert len(iio.imread(path)) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("launchers.evaluate", "--episodes=5"), "--workdir"),
        (("launchers.evaluate", "--workdir={empty}"), "is no workdir"),
        (("launchers.evaluate", "--workdir={workdir}", "--episodes=0"), "episodes"),
        (("launchers.evaluate", "--workdir={workdir}", "--epsilon=1.5"), "epsilon"),
        (
            ("launchers.evaluate", "--workdir={workdir}", "--config.env.noop_max=3"),
            "only Atari games have this",
        ),
        (("launchers.play", "--workdir={workdir}", "--video={empty}/film.avi"), ".mp4 or .gif"),
    ],
)
def test_bad_input_exits_with_2(
    workdir: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = _launch(*(argument.format(workdir=workdir, empty=tmp_path) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
