"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs that way and every child would inherit it: no test could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Compile a program once: all processes of this run, and no other run, share what they compiled."""
    if not hasattr(config, "workerinput"):  # xdist's workers inherit it
        directory = tempfile.mkdtemp(prefix="gorila_compiled_")
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = directory
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
