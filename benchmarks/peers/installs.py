"""A virtual environment for each peer, made from its pinned requirements and kept until they change."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from pathlib import Path
from typing import IO

from benchmarks.peers.processes import run_process
from gorila_jax.types import GorilaError

STAMP = ".installed"


def install(directory: Path, requirements: Path, log: IO[str]) -> Path:
    """The Python that has `requirements`, installed in `directory` unless they are there already.

    Args:
      directory: of the virtual environment; one that was made from another file, or cut short, is replaced.
      requirements: a pip requirements file.
      log: gets what pip says.

    Raises:
      GorilaError: the directory holds something else, or the installation failed.
    """
    python = directory.absolute() / "bin" / "python"
    wanted = _stamp(requirements)
    stamp = directory / STAMP
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    if directory.exists():
        if any(directory.iterdir()) and not (directory / "pyvenv.cfg").is_file():
            raise GorilaError(f"{directory} is no virtual environment; give another --venvs")
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    for step, command in (
        ("a virtual environment", [sys.executable, "-m", "venv", str(directory)]),
        ("its packages", [str(python), "-m", "pip", "install", "-r", str(requirements)]),
    ):
        exit_code = run_process(command, here, stdout=log, stderr=log).exit_code
        if exit_code:
            raise GorilaError(f"{step} could not be installed (exit code {exit_code}), see {log.name}")
    stamp.write_text(wanted, encoding="utf-8")  # last, so that an interrupted install is not taken for one
    return python


def _stamp(requirements: Path) -> str:
    return f"{platform.python_version()} {hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"
