"""Runs a benchmark in this process, at whatever size the flags give it, and reads its last line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from absl import flags
from absl.testing import flagsaver


def run_benchmark(
    module: ModuleType, capsys: pytest.CaptureFixture[str], directory: Path, *arguments: str
) -> tuple[dict[str, Any], str]:
    """The JSON object, whose shape is checked, and what came before it on stdout."""
    json_file = directory / "out.json"
    saved = flagsaver.save_flag_values()
    try:
        flags.FLAGS(["benchmark", *arguments, f"--json={json_file}"])
        module.main()
    finally:
        flagsaver.restore_flag_values(saved)
        flags.FLAGS.unparse_flags()
    *table, line = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record == json.loads(json_file.read_text())
    assert list(record) == ["benchmark", "ratios", "figures", "versions"]
    assert module.__name__ == f"benchmarks.{record['benchmark']}"
    assert record["ratios"]
    for name, ratio in record["ratios"].items():
        assert ratio >= 0, name
        assert math.isfinite(ratio), name
    assert {"rounds", "seconds"} <= set(record["figures"]["settings"])
    for name, figure in record["figures"].items():
        if isinstance(figure, dict) and "median" in figure:
            assert 0 <= figure["lowest"] <= figure["median"] <= figure["highest"], name
    return record, "\n".join(table)
