"""Other programs' processes, of which nothing is left when they have been waited for."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import psutil

LOOK_S = 1.0
GRACE_S = 60.0  # to end by itself when asked to


class Ended(NamedTuple):
    exit_code: int
    asked: bool  # to end, because `is_over` said so


def run_process(
    command: Sequence[str],
    directory: Path,
    stdout: IO[str],
    stderr: IO[str],
    is_over: Callable[[], bool] = lambda: False,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Ended:
    """Runs `command` in `directory` until it ends or `is_over()`, asked about once a second, is true.

    It gets a session of its own, so that a terminal's Ctrl-C reaches it through this function only: whatever
    interrupts the wait stops the process, with `stop_signal` first, and then all that it has started.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    asked = False
    try:
        while not asked:
            try:
                process.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                asked = is_over()
    finally:
        _stop(process, stop_signal)
    return Ended(process.returncode, asked)


def _stop(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    try:
        if process.poll() is None:
            process.send_signal(stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment() -> Mapping[str, str]:
    """Ours without what would lead one Python to another's packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


class OthersShare:
    """How much of the machine's processors goes to processes that are neither this one nor its children."""

    def __init__(self) -> None:
        self._wall_s, self._busy_s, self._own_s = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """From 0 to 1, of all cores since this object was made. Children count when they have ended."""
        cores = psutil.cpu_count() or 1
        capacity_s = cores * max(1e-9, time.monotonic() - self._wall_s)
        others_s = _busy_seconds() - self._busy_s - (_own_seconds() - self._own_s)
        return min(1.0, max(0.0, others_s / capacity_s))


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user already
    return sum(seconds for name, seconds in times.items() if name not in idle)


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
