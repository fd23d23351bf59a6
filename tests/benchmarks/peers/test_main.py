"""The comparison with other libraries, without them: with stand-ins for the Python of their environments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import installs
from gorila_jax.config import to_json_dict
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.runtime.workdir import versions
from tests.benchmarks.peers.lines import episode, progress, start

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "benchmarks" / "peers"


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


GOOD = [start(batch_size=32), episode(20, -21.0), progress(30, 15_000, 5), progress(60, 30_000, 35)]


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
    _stand_in(tmp_path / "venvs", "tianshou", _says(progress(5, 40)) + "\necho 'KeyError: pong' >&2; exit 7")
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
