"""Starts the launchers as a user does, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240  # for what happens in seconds on a quiet machine


def start(program: str, *flags: str, cwd: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """`python -m launchers.<program>`, with everything it prints in its stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", f"launchers.{program}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{cwd}"} | environment,
    )


def run(program: str, *flags: str, **more) -> tuple[int, str]:
    """Exit code and output of a program that ends by itself."""
    process = start(program, *flags, **more)
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, output


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    """Waits until the condition holds; fails when the process ends before or nothing happens."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)  # between two looks


def finish(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Sends a signal and waits for the end."""
    process.send_signal(number)
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, output
