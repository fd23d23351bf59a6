"""The launchers, as a benchmark runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gorila_jax.types import GorilaError


def program(launcher: str, *arguments: str) -> str:
    """What a launcher prints. Raises GorilaError when it fails."""
    command = [sys.executable, "-m", f"launchers.{launcher}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise GorilaError(f"{' '.join(command)} failed with code {done.returncode}: {done.stderr[-2_000:]}")
    return done.stdout


def evaluate(workdir: Path, checkpoint: int, episodes: int, seed: int, *arguments: str) -> dict[str, Any]:
    """The record that `launchers.evaluate` prints last."""
    output = program(
        "evaluate",
        f"--workdir={workdir}",
        f"--checkpoint={checkpoint}",
        f"--episodes={episodes}",
        f"--seed={seed}",
        *arguments,
    )
    record: dict[str, Any] = json.loads(output.splitlines()[-1])
    return record
