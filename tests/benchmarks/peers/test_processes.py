"""Processes that end, and those that are stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.processes import run_process

REPOSITORY = Path(__file__).parents[3]


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
