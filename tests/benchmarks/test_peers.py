"""The comparison with other libraries, without them: from recorded lines, and with stand-ins for Python."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import installs
from benchmarks.peers.curves import MAX_POINTS, cut, frames_per_second, plot, read_lines, summarise, thin
from benchmarks.peers.processes import Ended, run_process
from benchmarks.peers.record import PERIOD_S, Recorder
from gorila_jax.config import to_json_dict
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.runtime.workdir import versions
from gorila_jax.types import GorilaError

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "benchmarks" / "peers"
PEERS = ("stable_baselines3", "tianshou")


def _start(**settings: Any) -> str:
    return json.dumps({"kind": "start", "settings": settings, "versions": {"python": "3.11.7"}})


def _episode(seconds: float, value: float, epsilon: float = 0.5) -> str:
    line = {"kind": "episode", "seconds": seconds, "frames": 1, "return": value, "epsilon": epsilon}
    return json.dumps(line)


def _progress(seconds: float, frames: int, updates: int = 0) -> str:
    line = {"kind": "progress", "seconds": seconds, "frames": frames, "updates": updates, "epsilon": 0.5}
    return json.dumps(line)


# What is committed


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_has_a_driver_and_every_package_pinned(peer: str) -> None:
    assert (FOLDER / f"{peer}.py").is_file()
    lines = (FOLDER / f"{peer}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin), pin
    names = [pin.split("==")[0].lower().replace("_", "-") for pin in pins]
    assert len(names) == len(set(names))
    assert {peer.replace("_", "-"), "torch"} <= set(names)


def test_virtual_environments_are_ignored_by_git() -> None:
    assert "/.peers/" in (REPOSITORY / ".gitignore").read_text().splitlines()


# Lines


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
    lines = [_progress(1, 4)]
    lines += [_episode(2, -21.0, epsilon=1.0)] * 100
    lines += [_progress(3, 8)]
    lines += [_episode(4, 1.0, epsilon=0.0)] * 25
    lines += [_progress(5, 12), _episode(6, 21.0)]
    curve = read_lines(lines).curve
    assert curve["episodes"].tolist() == [0, 100, 125]
    assert math.isnan(curve["return_mean"][0])
    assert curve["return_mean"][1:].tolist() == [-21, (75 * -21 + 25 * 1) / 100]
    assert curve["epsilon_mean"][1:].tolist() == [1, 75 / 100]


def test_other_prints_and_a_line_cut_short_are_skipped() -> None:
    chatter = ["A.L.E: Arcade Learning Environment", "[1, 2]", '{"loss": 1.0}', ""]
    story = read_lines([*chatter, _start(seed=3), _progress(5, 40), _progress(10, 80)[:-9]])
    assert story.curve["frames"].tolist() == [40]
    assert story.settings == {"seed": 3}


def test_a_driver_that_wrote_nothing_has_a_curve_without_rows(tmp_path: Path) -> None:
    curve = read_lines([]).curve
    assert {len(values) for values in curve.values()} == {0}
    assert summarise(curve)["frames"] == 0
    assert set(map(len, thin(curve).values())) == {0}
    plot({"silent": curve}, "nothing", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


# Figures


def test_speeds_are_those_of_the_whole_run_and_of_learning() -> None:
    lines = [_progress(10, 4000), _progress(20, 8000, updates=5), _progress(60, 16_000, updates=105)]
    summary = summarise(read_lines(lines).curve)
    assert summary["frames_per_second"] == pytest.approx(16_000 / 60, rel=1e-5)
    assert summary["learning_since_minutes"] == pytest.approx(20 / 60, rel=1e-5)
    assert summary["learning_frames_per_second"] == (16_000 - 8000) / (60 - 20)
    assert summary["learning_updates_per_second"] == (105 - 5) / (60 - 20)
    assert (summary["minutes"], summary["frames"], summary["updates"]) == (1.0, 16_000, 105)


def test_a_run_that_never_learned_has_no_learning_figures() -> None:
    summary = summarise(read_lines([_progress(10, 4000), _progress(20, 8000)]).curve)
    assert summary["frames_per_second"] == 400
    assert summary["learning_frames_per_second"] is None
    assert summary["learning_since_minutes"] is None
    assert summary["final_return_mean"] is None


def test_the_best_mean_is_one_of_a_hundred_games_where_there_are_any() -> None:
    lucky = [_episode(1, 21.0), _progress(5, 4)]
    full = [*lucky, *[_episode(6, -20.0)] * 100, _progress(10, 8)]
    full += [*[_episode(11, -21.0)] * 100, _progress(15, 12)]
    assert summarise(read_lines(lucky).curve)["best_return_mean"] == 21
    summary = summarise(read_lines(full).curve)
    assert (summary["best_return_mean"], summary["final_return_mean"]) == (-20, -21)
    assert summary["best_at_minutes"] == pytest.approx(10 / 60, rel=1e-5)
    assert summary["final_window_episodes"] == 100


def test_curves_end_with_the_minutes_of_the_run() -> None:
    curve = read_lines([_progress(seconds, seconds) for seconds in range(5, 200, 5)]).curve
    assert cut(curve, minutes=1.0)["seconds"][-1] == 60 + PERIOD_S
    assert cut(curve, minutes=100.0)["seconds"][-1] == 195


def test_a_thin_curve_keeps_both_ends() -> None:
    curve = read_lines([_progress(seconds, 4 * seconds) for seconds in range(1, 1001)]).curve
    thinned = thin(curve)
    assert {len(values) for values in thinned.values()} == {MAX_POINTS}
    assert (thinned["frames"][0], thinned["frames"][-1]) == (4, 4000)
    assert thinned["return_mean"] == [None] * MAX_POINTS


def test_frames_per_second_over_minutes() -> None:
    """600 in the first two minutes, 60 in the third."""
    marks = [(seconds, 600 * seconds) for seconds in range(5, 121, 5)]
    marks += [(seconds, 600 * 120 + 60 * (seconds - 120)) for seconds in range(125, 601, 5)]
    minutes, speeds = frames_per_second(read_lines([_progress(*mark) for mark in marks]).curve)
    assert minutes.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]
    np.testing.assert_allclose(speeds, [600, 600, *[60] * 8])


# Processes


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]


def _run(code: str, log: Path, **options: Any) -> Any:
    with log.open("w") as file:
        return run_process([sys.executable, "-c", code], REPOSITORY, file, file, **options)


def test_a_process_that_ends_is_not_asked(tmp_path: Path) -> None:
    assert _run("print('said'); raise SystemExit(3)", tmp_path / "log") == (3, False)
    assert (tmp_path / "log").read_text() == "said\n"


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["asked", "interrupted"])
def test_nothing_is_left_of_a_process_that_is_stopped(how: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def is_over() -> bool:
        started = log.read_text().endswith("\n")
        if started and how == "interrupted":
            raise KeyboardInterrupt
        return started

    if how == "asked":
        assert _run(FAMILY, log, is_over=is_over) == (-signal.SIGTERM, True)
    else:
        with pytest.raises(KeyboardInterrupt):
            _run(FAMILY, log, is_over=is_over)
    child = int(log.read_text())
    give_up = time.monotonic() + 30
    while _is_alive(child):
        assert time.monotonic() < give_up
        time.sleep(0.05)


# Virtual environments


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "peer.txt"
    path.write_text("one==1\n")
    return path


class Installer:
    """A stand-in for venv and pip: counts installations."""

    def __init__(self, directory: Path) -> None:
        self.installs = 0
        self.exit_code = 0
        self._directory = directory

    def __call__(self, command: list[str], *_: Any, **__: Any) -> Ended:
        if "venv" in command:
            (self._directory / "bin").mkdir(parents=True)
            (self._directory / "bin/python").touch()
            (self._directory / "pyvenv.cfg").touch()
            return Ended(0, asked=False)
        self.installs += 1
        return Ended(self.exit_code, asked=False)


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    stand_in = Installer(tmp_path / "venvs/peer")
    monkeypatch.setattr(installs, "run_process", stand_in)
    return stand_in


def test_an_environment_is_reused_until_its_pins_change(
    tmp_path: Path, requirements: Path, installer: Installer
) -> None:
    directory, log = tmp_path / "venvs/peer", io.StringIO()
    python = installs.install(directory, requirements, log)
    assert python == directory / "bin/python"
    assert installs.install(directory, requirements, log) == python
    assert installer.installs == 1
    (directory / "left_over").touch()
    requirements.write_text("one==2\n")
    installs.install(directory, requirements, log)
    assert installer.installs == 2
    assert not (directory / "left_over").exists()


def test_a_failed_installation_is_started_afresh(
    tmp_path: Path, requirements: Path, installer: Installer
) -> None:
    directory = tmp_path / "venvs/peer"
    installer.exit_code = 1
    with (tmp_path / "log").open("w") as log:
        with pytest.raises(GorilaError, match=r"its packages .* \(exit code 1\), see .*log"):
            installs.install(directory, requirements, log)
        installer.exit_code = 0
        installs.install(directory, requirements, log)
    assert installer.installs == 2


def test_a_directory_of_something_else_is_left_alone(
    tmp_path: Path, requirements: Path, installer: Installer
) -> None:
    directory = tmp_path / "venvs/peer"
    directory.mkdir(parents=True)
    (directory / "thesis.tex").touch()
    with pytest.raises(GorilaError, match="no virtual environment"):
        installs.install(directory, requirements, io.StringIO())
    assert (directory / "thesis.tex").exists()
    assert installer.installs == 0


# The program


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers", *arguments]


def _launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )


def _record(stdout: str) -> dict[str, Any]:
    record = json.loads(stdout.splitlines()[-1])
    assert list(record) == ["benchmark", "ratios", "figures", "versions"]
    assert record["benchmark"] == "peers"
    return record


def _stand_in(venvs: Path, peer: str, script: str) -> None:
    """An environment that counts as installed and whose python is a shell script."""
    directory = venvs / peer
    (directory / "bin").mkdir(parents=True)
    python = directory / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (directory / "pyvenv.cfg").touch()
    (directory / installs.STAMP).write_text(installs._stamp(FOLDER / f"{peer}.txt"))


def _says(*lines: str) -> str:
    return "\n".join(f"echo '{line}'" for line in lines)


GOOD = [_start(batch_size=32), _episode(20, -21.0), _progress(30, 15_000, 5), _progress(60, 30_000, 35)]


def _write_ours(workdir: Path, environment: str = "Pong-v5", **started: Any) -> None:
    """Two minutes of ours, a row every half minute, at 2000 frames a second."""
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps(to_json_dict(make_config("dqn", environment))))
    (workdir / "versions.json").write_text(json.dumps([versions() | started]))
    with MetricsWriter(workdir) as writer:
        for row in range(1, 5):
            counts = {"frames": 60_000 * row, "steps": 15_000 * row, "updates": 100 * row}
            scores = {"episodes": 100 * row, "episode_return_mean": -21.0 + row, "episode_epsilon_mean": 0.25}
            writer.write(counts | scores | {"wall_seconds": 30.0 * row})


def test_a_good_peer_a_failed_one_and_a_run_of_ours(tmp_path: Path) -> None:
    _stand_in(tmp_path / "venvs", "stable_baselines3", _says(*GOOD))
    _stand_in(tmp_path / "venvs", "tianshou", _says(_progress(5, 40)) + "\necho 'KeyError: pong' >&2; exit 7")
    _write_ours(tmp_path / "ours")
    out = tmp_path / "out"
    done = _launch(
        "--minutes=1",
        f"--venvs={tmp_path / 'venvs'}",
        f"--workdir={tmp_path / 'ours'}",
        f"--out={out}",
        f"--json={tmp_path / 'peers.json'}",
        f"--png={tmp_path / 'peers.png'}",
    )
    assert done.returncode == 0, done.stderr
    record = _record(done.stdout)
    assert record == json.loads((tmp_path / "peers.json").read_text())
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    figures = record["figures"]
    assert list(figures) == ["settings", "ours", "stable_baselines3", "tianshou"]
    assert figures["settings"] == {"environment": "Pong-v5", "minutes": 1.0, "seed": 1}

    ours, good, failed = figures["ours"], figures["stable_baselines3"], figures["tianshou"]
    assert (ours["status"], good["status"], failed["status"]) == ("ran before", "ran", "failed")
    assert (ours["frames"], ours["final_return_mean"], ours["final_epsilon_mean"]) == (120_000, -19, 0.25)
    assert (good["frames"], good["final_return_mean"]) == (30_000, -21)
    assert good["settings"] == {"batch_size": 32}
    assert failed["error"].startswith("KeyError: pong (exit code 7")
    assert failed["frames"] == 40
    assert "KeyError: pong" in done.stdout
    assert "exploration differs" in " ".join(done.stdout.split())
    assert record["ratios"] == {
        "ours_over_stable_baselines3_frames_per_second": (120_000 / 60) / (30_000 / 60),
        "ours_over_stable_baselines3_learning_frames_per_second": (60_000 / 30) / (15_000 / 30),
        "ours_over_tianshou_frames_per_second": (120_000 / 60) / (40 / 5),
    }

    again = _launch(f"--recorded={out}")
    assert again.returncode == 0, again.stderr
    assert _record(again.stdout)["ratios"] == record["ratios"]
    assert _record(again.stdout)["figures"] == figures
    assert (out / "peers.png").exists()


def test_no_ratio_to_a_run_on_another_machine(tmp_path: Path) -> None:
    _stand_in(tmp_path / "venvs", "stable_baselines3", _says(*GOOD))
    _write_ours(tmp_path / "ours", cpu_count=4096)
    done = _launch(
        "--peers=stable_baselines3",
        f"--venvs={tmp_path / 'venvs'}",
        f"--workdir={tmp_path / 'ours'}",
        f"--out={tmp_path / 'out'}",
    )
    assert done.returncode == 0, done.stderr
    record = _record(done.stdout)
    assert record["figures"]["ours"]["frames"] > 0
    assert record["ratios"] == {}


def test_what_was_measured_before_an_interrupt_is_reported(tmp_path: Path) -> None:
    _stand_in(tmp_path / "venvs", "stable_baselines3", _says(*GOOD))
    _stand_in(tmp_path / "venvs", "tianshou", _says(*GOOD[:3]) + "\nexec sleep 600")
    out = tmp_path / "out"
    command = _command("--noours", f"--venvs={tmp_path / 'venvs'}", f"--out={out}")
    running = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = out / "tianshou.jsonl"
        give_up = time.monotonic() + 120
        while not lines.exists() or "progress" not in lines.read_text():
            assert running.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, stderr
    assert "Traceback" not in stderr
    figures = _record(stdout)["figures"]
    assert (figures["stable_baselines3"]["status"], figures["tianshou"]["status"]) == ("ran", "stopped")
    assert figures["tianshou"]["frames"] == 15_000


def test_a_run_in_which_nothing_played_ends_with_a_fault(tmp_path: Path) -> None:
    _stand_in(tmp_path / "venvs", "tianshou", "exit 1")
    places = (f"--venvs={tmp_path / 'venvs'}", f"--out={tmp_path / 'out'}")
    done = _launch("--noours", "--peers=tianshou", *places)
    assert done.returncode == 1
    assert "it said nothing" in _record(done.stdout)["figures"]["tianshou"]["error"]
    assert "Traceback" not in done.stderr


# One process for all, because it takes some seconds to load; not this one, where other benchmarks may have
# defined the same flags.
REFUSALS = """
import sys
from absl import flags
from absl.testing import flagsaver
from benchmarks.peers import __main__ as program
from gorila_jax.types import ConfigError

for case in sys.argv[1:]:
    with flagsaver.flagsaver():
        flags.FLAGS(["peers", case])
        try:
            program.main()
        except ConfigError as error:
            print(str(error).splitlines()[0])
"""


def test_refusals(tmp_path: Path) -> None:
    _write_ours(tmp_path / "breakout", environment="Breakout-v5")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    messages = {
        "--peers=acme": "possible: stable_baselines3, tianshou",
        "--environment=CartPole-v1": "no Atari game",
        f"--workdir={tmp_path / 'breakout'}": "played Breakout-v5, the peers play Pong-v5",
        f"--workdir={tmp_path / 'nowhere'}": "does not exist",
        f"--out={tmp_path / 'used'}": "not empty",
        f"--recorded={tmp_path / 'used'}": "holds no run of this benchmark",
    }
    command = [sys.executable, "-c", REFUSALS, *messages]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    for said, message in zip(done.stdout.splitlines(), messages.values(), strict=True):
        assert message in said


@pytest.mark.slow
def test_ours_is_trained_until_its_time_is_over(tmp_path: Path) -> None:
    done = _launch("--agent=dqn", "--peers=", "--minutes=0.1", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    ours = _record(done.stdout)["figures"]["ours"]
    assert (ours["status"], ours["error"]) == ("ran", "")
    assert ours["frames"] > 0
    assert ours["settings"]["agent"] == "dqn"
    assert max(ours["curve"]["seconds"]) >= 6
