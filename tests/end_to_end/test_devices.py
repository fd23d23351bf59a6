"""A run's checkpoint on another number of devices."""

from __future__ import annotations

import json
import re

import numpy as np

from gorila_jax.runtime.metrics import read_metrics
from tests.end_to_end.programs import run


def test_a_run_of_four_devices_is_evaluated_and_goes_on_with_one(tmp_path):
    flags = (
        "--agent=dqn",
        "--environment=Catch-v0",
        "--replay_backend=memory",
        "--config.replay.learning_starts_steps=100",
        f"--workdir={tmp_path}",
    )
    code, output = run("train", *flags, "--host_devices=4", "--total_frames=600")
    assert code == 0, output
    (devices,) = re.findall(r"fed by actors 0, on (.*)", output)
    assert len(set(devices.split(", "))) == 4
    code, output = run("evaluate", f"--workdir={tmp_path}", "--episodes=4")
    assert code == 0, output
    assert len(json.loads(output.splitlines()[-1])["returns"]) == 4
    updates = read_metrics(tmp_path)["updates"][-1]
    assert updates > 0
    code, output = run("train", *flags, "--total_frames=1200")
    assert code == 0, output
    metrics = read_metrics(tmp_path)
    assert metrics["updates"][-1] > updates
    assert (np.diff(metrics["updates"]) >= 0).all()
