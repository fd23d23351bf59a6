"""Lines that a driver of a peer prints."""

from __future__ import annotations

import json
from typing import Any


def start(**settings: Any) -> str:
    return json.dumps({"kind": "start", "settings": settings, "versions": {"python": "3.11.7"}})


def episode(seconds: float, value: float, epsilon: float = 0.5) -> str:
    line = {"kind": "episode", "seconds": seconds, "frames": 1, "return": value, "epsilon": epsilon}
    return json.dumps(line)


def progress(seconds: float, frames: int, updates: int = 0) -> str:
    line = {"kind": "progress", "seconds": seconds, "frames": frames, "updates": updates, "epsilon": 0.5}
    return json.dumps(line)
