"""What a driver says of its run: lines of JSON on stdout.

    {"kind": "start", "settings": {...}, "versions": {...}}
    {"kind": "episode", "seconds": s, "frames": f, "return": r, "epsilon": e}    a whole game, raw score
    {"kind": "progress", "seconds": s, "frames": f, "updates": u, "epsilon": e}  every `PERIOD_S`, and last

Seconds count from the `Recorder`'s start, frames are the emulator's: `FRAME_SKIP` for every action taken.
This runs in the peer's own Python and imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

FRAME_SKIP = 4
FRAME_STACK = 4
PERIOD_S = 5.0


def arguments() -> argparse.Namespace:
    """What every driver is told: `game` (Pong, SpaceInvaders), `minutes`, `seed`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--game", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args()


class Recorder:
    """Starts the clock, and keeps stdout for its own lines: what else is printed goes to stderr.

    Args:
      minutes: after which `is_over` is true.
      settings: JSON values: what the peer was given.
      packages: names of distributions whose versions explain the result.
    """

    def __init__(self, minutes: float, settings: Mapping[str, Any], packages: Iterable[str]) -> None:
        self._out = sys.stdout
        sys.stdout = sys.stderr
        versions = {name: importlib.metadata.version(name) for name in packages}
        versions["python"] = platform.python_version()
        self._write({"kind": "start", "settings": dict(settings), "versions": versions})
        self._began = time.perf_counter()
        self._limit_s = 60 * minutes
        self._last_s = 0.0

    def is_over(self) -> bool:
        return self._seconds() >= self._limit_s

    def episode(self, frames: int, episode_return: float, epsilon: float) -> None:
        """A game has ended, at so many frames of the run."""
        line = {"kind": "episode", "seconds": self._seconds(), "frames": frames}
        self._write(line | {"return": episode_return, "epsilon": epsilon})

    def progress(self, frames: int, updates: int, epsilon: float) -> None:
        """Called often, writes when it is due or the time is over."""
        now = self._seconds()
        if now - self._last_s >= PERIOD_S or now >= self._limit_s:
            self._last_s = now
            line = {"kind": "progress", "seconds": now, "frames": frames}
            self._write(line | {"updates": updates, "epsilon": epsilon})

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._began, 3)

    def _write(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=self._out, flush=True)
