"""`launchers.train`, start to end: budgets, signals, resuming, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gorila_jax import checkpoints
from gorila_jax.runtime.metrics import read_metrics
from tests.end_to_end.programs import PATIENCE_S, ROOT, finish, run, start, wait_for

SHORT = (
    "--environment=Catch-v0",
    "--replay_backend=memory",
    "--config.replay.learning_starts_steps=100",
    "--config.run.log_period_seconds=0.2",
)


def checkpoint_frames(workdir: Path) -> list[int]:
    return checkpoints.list_checkpoints(workdir / "checkpoints")


def test_a_finished_budget_leaves_everything_behind(tmp_path):
    flags = ("--agent=gorila", "--total_frames=2000", f"--workdir={tmp_path / 'w'}")
    code, output = run("train", *SHORT, *flags)
    assert code == 0, output
    assert checkpoint_frames(tmp_path / "w")[-1] >= 2000
    config = json.loads((tmp_path / "w" / "config.json").read_text())
    assert (config["agent"], config["environment"]) == ("gorila", "Catch-v0")
    assert config["run"]["total_frames"] == 2000
    versions = json.loads((tmp_path / "w" / "versions.json").read_text())
    assert "jax" in versions[-1]["libraries"]
    metrics = read_metrics(tmp_path / "w")
    assert metrics["frames"][-1] == metrics["steps"][-1] >= 2000
    # 100 items fill the table before anything is sampled; after that eight samples per insert.
    assert 0 < metrics["samples_per_insert"][-1] < 8.5
    assert list((tmp_path / "w" / "tensorboard").iterdir())
    assert "bottleneck" in output
    assert "parameters checksum: " in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_a_checkpoint_and_it_goes_on_from_there(tmp_path, number, code):
    flags = (*SHORT, "--agent=dqn", f"--workdir={tmp_path}", "--config.checkpoint.period_seconds=0.5")
    process = start("train", *flags, "--total_frames=100000000")
    wait_for(lambda: checkpoint_frames(tmp_path), process)
    ended, output = finish(process, number)
    assert ended == code, output
    assert f"stopped by {number.name}" in output
    before = checkpoint_frames(tmp_path)[-1]
    assert f"{before:,} frames" in output

    _, saved = checkpoints.restore_latest(tmp_path / "checkpoints")
    ended, output = run("train", *flags, f"--total_frames={before + 1000}")
    assert ended == 0, output
    assert f"resuming {tmp_path} at {before:,} frames, {saved['counters']['updates']:,} updates" in output
    metrics = read_metrics(tmp_path)
    assert (np.diff(metrics["frames"]) > 0).all()
    assert (np.diff(metrics["updates"]) >= 0).all()
    assert (np.diff(metrics["epsilon"]) <= 1e-9).all()
    assert (np.diff(metrics["episodes"]) >= 0).all()
    assert metrics["frames"][-1] >= before + 1000


def test_another_experiment_is_refused_and_nothing_is_touched(tmp_path):
    workdir = tmp_path / "w"
    flags = (*SHORT, f"--workdir={workdir}", "--total_frames=300")
    assert run("train", *flags)[0] == 0
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.read_bytes() for path in files}
    code, output = run("train", *flags, "--seed=1")
    assert code == 2
    assert "run.seed: 0 -> 1" in output
    assert before == {
        path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"
    }


REFUSALS = [
    (["--agent=dqn", "--num_actors=2"], "--agent=gorila"),
    (["--agent=dqn", "--num_learners=2"], "--agent=gorila"),
    (["--agent=dqn", "--num_shards=2"], "--agent=gorila"),
    (["--agent=dqm"], "did you mean dqn"),
    (["--agent=no.module:recipe"], "no.module"),
    (["--environment=pnog"], "Pong-v5"),
    (["--environment=Pendulum-v1"], "continuous"),
    (["--preset=huge"], "paper"),
    (["--num_actors=3", "--num_learners=2", "--replay=local"], "multiple"),
    (["--config.learner.batch_sise=3"], "config.learner.batch_size"),
    (["--config.learner.batch_size=many"], "learner.batch_size"),
    (["--config.learner.batch_size=0"], "at least 1"),
    (["--num_actors=2", "--config.actor.num_actors=3"], "contradicts"),
    (["--seed=99999999999"], "run.seed"),
    (["--init_from=nowhere"], "nowhere"),
    (["--config.replay.capacity_steps=1e12"], "GB"),
    (["--config.replay.server_addresses=a:1"], "replay.run_id"),
    (["--config.parameter_server.optimizer=lamb", "--num_shards=2"], "lamb"),
    (["--lockstep", "--replay_backend=reverb"], "memory"),
    (["--lockstep", "--config.replay.port=7000"], "has no server"),
    (["--replay_backend=memory", "--config.replay.port=7000"], "has no server"),
    (["--lockstep", "--config.replay.server_addresses=a:1", "--config.replay.run_id=r"], "has no server"),
    (["--num_shards=100000"], "7,619 parameters"),
    (["--num_replay_servers=2", "--num_actors=3"], "use 2 or 4"),
    (["--num_replay_servers=2", "--num_actors=2", "--config.replay.error_buffer_samples=9"], "from 2 tables"),
    (["--config.replay.server_addresses=a", "--config.replay.run_id=r"], "host:port"),
    (["stray"], "stray"),
]


def test_bad_input_ends_with_code_2_before_anything_starts(tmp_path):
    common = ["--environment=Catch-v0", f"--workdir={tmp_path / 'w'}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.refusals"],
        input=json.dumps([common + flags for flags, _ in REFUSALS]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    for (flags, says), (code, said) in zip(REFUSALS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert code == 2, (flags, said)
        assert says.lower() in said.lower(), flags
        assert "Traceback" not in said
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("flag", "says"), [("--host_devices=3", "33"), ("--platform=gpu", "gpu"), ("--agent=dqm", "did you mean")]
)
def test_a_refusal_is_exit_code_2_of_the_process(tmp_path, flag, says):
    code, output = run("train", "--environment=Catch-v0", f"--workdir={tmp_path / 'w'}", flag)
    assert code == 2, output
    assert says in output
    assert "Traceback" not in output
    assert not (tmp_path / "w").exists()


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path):
    flags = ("--agent=gorila", "--num_actors=4", "--num_learners=2", "--replay=local")
    code, output = run("train", "--environment=pong", "--dry_run", *flags, f"--workdir={tmp_path / 'w'}")
    assert code == 0, output
    learner = "learner 1: table 1 fed by actors 2, 3"
    for part in ("Pong-v5", "preset", "GB", learner, "parameters", "frame_skip=4"):
        assert part in output
    assert not (tmp_path / "w").exists()


def checksum(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("parameters checksum: "))


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        (("--agent=gorila", "--num_actors=2", "--num_learners=2", "--num_shards=2"), range(300, 400)),
        (("--agent=r2d2",), range(45, 65)),  # of 320 steps each
    ],
    ids=["gorila", "r2d2"],
)
def test_lockstep_gives_the_same_bits_for_the_same_seed_and_others_for_another(tmp_path, flags, updates):
    def outcome(name: str, seed: int) -> str:
        more = (f"--seed={seed}", "--total_frames=1500", f"--workdir={tmp_path / name}")
        code, output = run("train", *SHORT, "--lockstep", *flags, *more)
        assert code == 0, output
        (line,) = (line for line in output.splitlines() if line.startswith("updates: "))
        assert int(line.removeprefix("updates: ")) in updates
        return checksum(output)

    first = outcome("a", 7)
    assert outcome("b", 7) == first
    assert outcome("c", 8) != first


def test_init_from_starts_with_the_parameters_of_another_run(tmp_path):
    assert run("train", *SHORT, "--total_frames=500", f"--workdir={tmp_path / 'a'}")[0] == 0
    # Learning never starts in the second run, so its parameters are those it was given.
    frozen = ("--config.replay.learning_starts_steps=5000", "--total_frames=200", "--agent=dqn")
    code, output = run(
        "train", *SHORT, *frozen, f"--init_from={tmp_path / 'a'}", f"--workdir={tmp_path / 'b'}"
    )
    assert code == 0, output
    saved = [checkpoints.restore_latest(tmp_path / name / "checkpoints")[1] for name in "ab"]
    parameters = [state["server"]["parameters"] for state in saved]
    assert str(parameters[0]) == str(parameters[1])
    code, output = run(
        "train", *SHORT, f"--init_from={tmp_path / 'a'}", f"--workdir={tmp_path / 'c'}",
        "--config.network.centered_images=true",
    )  # fmt: skip
    assert code == 2
    assert "learned with network.centered_images=false: set that here, too" in output


BROKEN_ENVIRONMENT = """
import gymnasium


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 50:
            raise RuntimeError("the robot fell over")
        return self.observation_space.sample(), 0.0, False, False, {}


def make():
    return Broken()
"""


def test_a_part_that_fails_ends_the_run_with_its_traceback(tmp_path):
    (tmp_path / "robot.py").write_text(BROKEN_ENVIRONMENT)
    flags = ("--agent=gorila", "--environment=robot:make", "--replay_backend=memory", "--workdir=w")
    code, output = run("train", *flags, cwd=tmp_path)
    assert code == 1, output
    assert "the robot fell over" in output
    assert "robot.py" in output  # the line in the user's code


def test_a_second_process_in_the_same_workdir_is_refused(tmp_path):
    flags = (*SHORT, f"--workdir={tmp_path}", "--total_frames=100000000")
    process = start("train", *flags)
    wait_for(lambda: (tmp_path / "metrics.csv").exists(), process)
    code, output = run("train", *flags)
    assert code == 2
    assert f"in use by pid {process.pid}" in output
    assert finish(process, signal.SIGTERM)[0] == 143


def test_help_names_every_flag_with_its_unit():
    code, output = run("train", "--helpfull")
    assert code == 0
    assert "--config.actor.parameter_period_steps" in output.replace("--[no]", "--")
    assert "frames of all actors" in output


def test_the_flags_of_the_makefile_are_those_of_the_launcher():
    makefile = (ROOT / "Makefile").read_text()
    assert "launchers.train --agent=apex --environment=Pong-v5 --workdir=runs/pong" in makefile
