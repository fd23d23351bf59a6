"""Gives `launchers.train` one command line after the other in one process: what is refused starts nothing.

Reads a JSON list of lists of flags from stdin and prints a JSON list of [exit code, what it said].
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from absl.testing import flagsaver

from launchers import program, train


def refuse(flags: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), flagsaver.flagsaver():
        try:
            program.parse(["train", *flags])
            program.guarded(train.main)
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    raise AssertionError("it did not end")


if __name__ == "__main__":
    print(json.dumps([refuse(flags) for flags in json.load(sys.stdin)]))
