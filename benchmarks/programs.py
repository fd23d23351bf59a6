"""The launchers, as a benchmark runs them."""

from __future__ import annotations

import subprocess
import sys

from gorila_jax.types import GorilaError


def program(launcher: str, *arguments: str) -> str:
    """What a launcher prints. Raises GorilaError when it fails."""
    command = [sys.executable, "-m", f"launchers.{launcher}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise GorilaError(f"{' '.join(command)} failed with code {done.returncode}: {done.stderr[-2_000:]}")
    return done.stdout
