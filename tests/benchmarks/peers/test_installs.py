"""The pins of the peers, and their virtual environments with a stand-in for venv and pip."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import installs
from benchmarks.peers.processes import Ended
from gorila_jax.types import GorilaError

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "benchmarks" / "peers"
PEERS = ("stable_baselines3", "tianshou")


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
