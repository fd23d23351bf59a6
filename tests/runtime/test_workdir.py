"""A workdir belongs to one experiment and to one process at a time."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gorila_jax.config import to_json_dict
from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.runtime import workdir
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.workdir import open_workdir
from gorila_jax.types import ConfigError, GorilaError

EXPERIMENT = {
    "agent": "gorila",
    "network": {"filters": (32, 64)},
    "checkpoint": {"keep": 3, "period_seconds": 1.5},
    "run": {"seed": 7, "total_frames": 1000},
}


def _changed(section: str, field: str, value: object) -> dict:
    experiment = copy.deepcopy(EXPERIMENT)
    experiment[section][field] = value
    return experiment


def _contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


class TestOpen:
    def test_new_then_resumed(self, tmp_path: Path) -> None:
        path = tmp_path / "runs" / "a"
        with open_workdir(path, EXPERIMENT) as first:
            assert not first.resumed
            assert first.path == path
        config = (path / "config.json").read_bytes()
        with open_workdir(path, EXPERIMENT) as second:
            assert second.resumed
            assert second.changed == {}
        assert (path / "config.json").read_bytes() == config
        assert load_experiment(path) == json.loads(json.dumps(EXPERIMENT))
        assert len(json.loads((path / "versions.json").read_text())) == 2

    def test_relative_path_survives_a_change_of_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with open_workdir("w", EXPERIMENT) as opened:
            assert opened.path == tmp_path / "w"
            assert opened.checkpoints == str(tmp_path / "w" / "checkpoints")

    def test_empty_directory_is_taken(self, tmp_path: Path) -> None:
        with open_workdir(tmp_path, EXPERIMENT) as opened:
            assert not opened.resumed

    def test_another_experiment_is_refused_field_by_field(self, tmp_path: Path) -> None:
        open_workdir(tmp_path, EXPERIMENT).close()
        before = _contents(tmp_path)
        other = _changed("run", "seed", 8)
        other["network"]["filters"] = [16]
        other["run"]["new"] = True
        del other["agent"]
        with pytest.raises(ConfigError) as caught:
            open_workdir(tmp_path, other, may_change={"run.total_frames"})
        message = str(caught.value)
        for line in (
            "run.seed: 7 -> 8",
            "network.filters: [32, 64] -> [16]",
            "run.new: (not set) -> true",
            'agent: "gorila" -> (not set)',
            "another --workdir",
        ):
            assert line in message
        assert "keep" not in message
        assert _contents(tmp_path) == before
        open_workdir(tmp_path, EXPERIMENT).close()  # the refusal has given the lock back

    def test_fields_that_may_change(self, tmp_path: Path) -> None:
        open_workdir(tmp_path, EXPERIMENT).close()
        longer = _changed("run", "total_frames", 2000)
        longer["checkpoint"]["keep"] = 9
        with pytest.raises(ConfigError, match=r"checkpoint\.keep: 3 -> 9") as caught:
            open_workdir(tmp_path, longer, may_change={"run.total_frames"})
        assert "total_frames" not in str(caught.value)
        with open_workdir(tmp_path, longer, may_change={"run.total_frames", "checkpoint.*"}) as opened:
            assert opened.changed == {"run.total_frames": (1000, 2000), "checkpoint.keep": (3, 9)}
        assert load_experiment(tmp_path)["run"]["total_frames"] == 2000
        assert load_experiment(tmp_path)["checkpoint"]["keep"] == 9

    def test_other_files_are_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("precious")
        with pytest.raises(ConfigError, match=r"thesis\.tex.*no workdir"):
            open_workdir(tmp_path, EXPERIMENT)
        assert _contents(tmp_path) == {"thesis.tex": b"precious"}

    def test_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("precious")
        with pytest.raises(ConfigError, match="is a file"):
            open_workdir(tmp_path / "file", EXPERIMENT)
        with pytest.raises(GorilaError, match="Not a directory"):
            open_workdir(tmp_path / "file" / "below", EXPERIMENT)
        assert (tmp_path / "file").read_text() == "precious"

    def test_damaged_config_is_named(self, tmp_path: Path) -> None:
        open_workdir(tmp_path, EXPERIMENT).close()
        (tmp_path / "config.json").write_text('{"agent": ')
        with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
            open_workdir(tmp_path, EXPERIMENT)

    def test_damaged_versions_are_named_and_left(self, tmp_path: Path) -> None:
        open_workdir(tmp_path, EXPERIMENT).close()
        (tmp_path / "versions.json").write_text('[{"a":')
        with pytest.raises(ConfigError, match=r"versions\.json is damaged.*move it away"):
            open_workdir(tmp_path, EXPERIMENT)
        assert (tmp_path / "versions.json").read_text() == '[{"a":'


class TestInterruptedStart:
    def test_a_start_killed_before_any_of_its_steps_can_be_repeated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(BaseException):
            pass

        step, died = 0, True
        while died:
            step, calls, died = step + 1, 0, False

            def dying(function, step=step):
                def wrapped(*arguments, **options):
                    nonlocal calls
                    calls += 1
                    if calls == step:
                        raise Killed
                    return function(*arguments, **options)

                return wrapped

            path = tmp_path / str(step)
            with monkeypatch.context() as context:
                for name in ("mkdir", "open", "replace", "fsync", "ftruncate"):
                    context.setattr(os, name, dying(getattr(os, name)))
                try:
                    open_workdir(path, EXPERIMENT).close()
                except Killed:
                    died = True
            with open_workdir(path, EXPERIMENT) as opened:
                assert opened.resumed or died
            assert load_experiment(path)["run"]["seed"] == 7
        assert step > 6


class TestLock:
    def test_two_processes_never_share_one_and_a_killed_one_leaves_it(self, tmp_path: Path) -> None:
        program = (
            "import sys, json\n"
            "from gorila_jax.runtime.workdir import open_workdir\n"
            "opened = open_workdir(sys.argv[1], json.loads(sys.argv[2]))\n"
            "print('open', flush=True)\n"
            "sys.stdin.read()\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), json.dumps(EXPERIMENT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            assert child.stdout.readline() == b"open\n"
            with pytest.raises(ConfigError, match=f"in use by pid {child.pid}"):
                open_workdir(tmp_path, EXPERIMENT)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            child.stdin.close()
        with open_workdir(tmp_path, EXPERIMENT) as opened:
            assert opened.resumed

    def test_not_twice_in_one_process_either(self, tmp_path: Path) -> None:
        with open_workdir(tmp_path, EXPERIMENT) as opened:
            with pytest.raises(ConfigError, match=f"in use by pid {os.getpid()}"):
                open_workdir(tmp_path, EXPERIMENT)
            opened.close()
            open_workdir(tmp_path, EXPERIMENT).close()

    def test_a_reader_needs_no_lock(self, tmp_path: Path) -> None:
        with open_workdir(tmp_path, EXPERIMENT):
            assert load_experiment(tmp_path)["agent"] == "gorila"


class TestLoadExperiment:
    def test_says_what_is_wrong(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            load_experiment(tmp_path / "absent")
        with pytest.raises(ConfigError, match=r"is no workdir: it has no config\.json"):
            load_experiment(tmp_path)
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="it is a file"):
            load_experiment(tmp_path / "file")
        (tmp_path / "config.json").write_text("[]")
        with pytest.raises(ConfigError, match="holds no configuration"):
            load_experiment(tmp_path)


class TestVersions:
    def test_names_libraries_devices_and_platform(self) -> None:
        import jax
        import numpy as np

        found = workdir.versions()
        assert json.loads(json.dumps(found)) == found
        assert found["libraries"]["jax"] == jax.__version__
        assert found["libraries"]["numpy"] == np.__version__
        assert len(found["devices"]) == jax.device_count()
        assert found["python"].startswith("3.")

    def test_commit_and_whether_the_code_was_changed(self, tmp_path: Path) -> None:
        package = tmp_path / "package"
        package.mkdir()
        assert workdir._code_version(package) == {"git_commit": None, "git_modified": None}

        def git(*arguments: str) -> str:
            identity = ("-c", "user.name=n", "-c", "user.email=e")
            command = ["git", "-C", str(tmp_path), *identity, *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

        git("init", "-q")
        (package / "types.py").write_text("a = 1\n")
        (tmp_path / "other").write_text("")
        git("add", "other")
        git("commit", "-q", "-m", "other")
        # A checkout around an installed copy that is no part of it says nothing about that copy.
        assert workdir._code_version(package) == {"git_commit": None, "git_modified": None}
        git("add", "package")
        git("commit", "-q", "-m", "package")
        commit = git("rev-parse", "HEAD")
        assert workdir._code_version(package) == {"git_commit": commit, "git_modified": False}
        (package / "types.py").write_text("a = 2\n")
        assert workdir._code_version(package) == {"git_commit": commit, "git_modified": True}


def test_a_workdir_older_than_a_setting_is_resumed_with_its_default(tmp_path):
    experiment = to_json_dict(make_config("gorila", "Catch-v0"))
    older = json.loads(json.dumps(experiment))
    del older["network"]["dueling"]
    with open_workdir(tmp_path / "w", older):
        pass
    with open_workdir(tmp_path / "w", experiment) as opened:
        assert opened.resumed
    experiment["network"]["dueling"] = True
    with pytest.raises(ConfigError, match=r"network\.dueling: false -> true"):
        open_workdir(tmp_path / "w", experiment)
