"""What can be read from a workdir, and what is said when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.types import ConfigError
from tests.evaluation.runs import save_run, toy_config


def test_everything_comes_back(tmp_path: Path) -> None:
    config = toy_config()
    save_run(tmp_path, config, {"w": np.arange(3.0)}, frames=400, version=7)
    run = load_run(tmp_path)
    assert run.config == config
    assert (run.frames, run.version) == (400, 7)
    assert run.parameters["w"].tolist() == [0, 1, 2]


def test_newest_or_asked_for(tmp_path: Path) -> None:
    for frames in (900, 1000):  # as text, 900 would be the last
        save_run(tmp_path, toy_config(), {"w": np.array([frames])}, frames=frames, version=frames // 10)
    assert load_run(tmp_path).version == 100
    assert load_run(tmp_path, 900).version == 90


def test_no_workdir(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_run(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"is no workdir: it has no config\.json"):
        load_run(tmp_path)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    save_run(tmp_path, toy_config(), {"w": np.zeros(1)})
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="holds no checkpoint yet"):
        load_run(tmp_path)


def test_a_setting_of_another_program_is_named(tmp_path: Path) -> None:
    save_run(tmp_path, toy_config(), {"w": np.zeros(1)})
    values = json.loads((tmp_path / "config.json").read_text())
    values["env"]["gravity"] = 9.81
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"env\.gravity"):
        load_run(tmp_path)
