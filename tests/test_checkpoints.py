"""Checkpoints are whole or absent, and give back exactly what was saved."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from gorila_jax import checkpoints
from gorila_jax.types import ConfigError, GorilaError, ReplayError


def _state(frames: int, size: int = 3) -> dict:
    """A tree whose every leaf says which save it is of."""
    return {
        "frames": frames,
        "parameters": {f"layer{i}": {"w": np.full((size, size), frames, np.int64)} for i in range(4)},
        "list": [np.float32(frames), (frames, np.full(2, frames))],
    }


def _assert_of(frames: int, state: dict) -> None:
    leaves = jax.tree.leaves(state)
    assert len(leaves) == 8
    assert all(np.all(np.asarray(leaf) == frames) for leaf in leaves)


class TestRoundTrip:
    def test_gives_back_containers_values_and_dtypes_without_knowing_the_tree(self, tmp_path: Path) -> None:
        random_state = np.random.default_rng(5).bit_generator.state
        state = {
            "int": 2**100,
            "float": 0.1,
            "bool": True,
            "none": None,
            "text": "größer",
            "empty": [{}, [], ()],
            "tuple": (1, [2, (3,)]),
            "random": random_state,
            "odd/key.with 0": {"~": np.arange(3, dtype=np.uint8)},
            "arrays": [
                np.arange(6).reshape(2, 3).astype(dtype)
                for dtype in ("bool", "uint8", "int32", "uint64", "int64", "float16", "float32", "float64")
            ],
            "bfloat16": np.array([1.5, -2], ml_dtypes.bfloat16),
            "no elements": np.zeros((0, 4), np.float32),
            "no dimensions": np.array(7, np.uint32),
            "scalar": np.float64(0.3),
            "large": np.array([2**64 - 1], np.uint64),
            "not finite": np.array([np.nan, np.inf]),
        }
        checkpoints.save(tmp_path, 12, state, keep=1)
        frames, restored = checkpoints.restore(tmp_path, 12)
        assert frames == 12
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        for was, now in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
            assert type(now) is type(was)
            np.testing.assert_array_equal(now, was)
            assert np.asarray(now).dtype == np.asarray(was).dtype
        np.random.default_rng().bit_generator.state = restored["random"]

    def test_optimizer_state_as_state_dict(self, tmp_path: Path) -> None:
        parameters = {"dense": {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros(3)}}
        optimizer = optax.adam(1e-3)
        _, state = optimizer.update(parameters, optimizer.init(parameters))
        tree = {"optimizer": flax.serialization.to_state_dict(state), "parameters": parameters}
        checkpoints.save(tmp_path, 1, tree, keep=1)
        _, restored = checkpoints.restore(tmp_path, 1)
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(restored))
        again = flax.serialization.from_state_dict(optimizer.init(parameters), restored["optimizer"])
        for was, now in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(now, was)

    def test_restored_arrays_are_writable_and_independent(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, 1, {"a": np.zeros(3)}, keep=1)
        _, first = checkpoints.restore(tmp_path, 1)
        first["a"] += 1
        assert checkpoints.restore(tmp_path, 1)[1]["a"].sum() == 0

    @pytest.mark.parametrize(
        ("state", "where"),
        [
            ({"a": {1: 2}}, "state/a"),
            ({"a": [0, object()]}, "state/a/1"),
            ({"a": optax.EmptyState()}, "state/a"),
            ({"a": np.array(["word"])}, "state/a"),
            ({"a": np.array([object()])}, "state/a"),
        ],
    )
    def test_what_it_cannot_hold_is_named(self, tmp_path: Path, state: dict, where: str) -> None:
        with pytest.raises(TypeError, match=f"^{where} "):
            checkpoints.save(tmp_path, 1, state, keep=1)
        assert checkpoints.list_checkpoints(tmp_path) == []

    def test_holds_no_pickle(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, 1, _state(1), keep=1)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if path.read_bytes().startswith(b"\x80")]


class TestRetention:
    def test_keeps_the_newest(self, tmp_path: Path) -> None:
        for frames in (4, 8, 90, 100, 1000):
            checkpoints.save(tmp_path, frames, _state(frames), keep=3)
        assert checkpoints.list_checkpoints(tmp_path) == [90, 100, 1000]
        assert sorted(os.listdir(tmp_path)) == ["100", "1000", "90"]
        latest = checkpoints.restore_latest(tmp_path)
        assert latest is not None
        assert latest[0] == 1000
        _assert_of(1000, latest[1])
        _assert_of(90, checkpoints.restore(tmp_path, 90)[1])

    def test_same_frames_again_replaces(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, 5, {"a": 1}, keep=2)
        checkpoints.save(tmp_path, 5, {"a": 2}, keep=2)
        assert checkpoints.restore_latest(tmp_path) == (5, {"a": 2})
        assert os.listdir(tmp_path) == ["5"]

    def test_the_one_just_saved_stays_even_if_older(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, 9, {"a": 9}, keep=1)
        checkpoints.save(tmp_path, 3, {"a": 3}, keep=1)
        assert checkpoints.list_checkpoints(tmp_path) == [3]

    def test_keep_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"checkpoint\.keep=0"):
            checkpoints.save(tmp_path, 1, {}, keep=0)

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert checkpoints.list_checkpoints(tmp_path / "absent") == []
        assert checkpoints.restore_latest(tmp_path / "absent") is None
        with pytest.raises(ConfigError, match="no checkpoint of 7 frames"):
            checkpoints.restore(tmp_path, 7)


class TestExtra:
    def test_is_part_of_the_checkpoint(self, tmp_path: Path) -> None:
        def write(directory: str) -> None:
            assert checkpoints.list_checkpoints(tmp_path) == []  # not visible before it is complete
            (Path(directory) / "replay").mkdir()
            (Path(directory) / "replay" / "items").write_text("items")

        path = checkpoints.save(tmp_path, 3, _state(3), keep=1, write_extra=write)
        assert path == checkpoints.checkpoint_path(tmp_path, 3)
        assert (Path(path) / "replay" / "items").read_text() == "items"

    def test_its_failure_leaves_the_previous_checkpoint(self, tmp_path: Path) -> None:
        def fail(directory: str) -> None:
            (Path(directory) / "half").write_text("half")
            raise ReplayError("the replay is gone")

        checkpoints.save(tmp_path, 1, _state(1), keep=1)
        with pytest.raises(ReplayError, match="the replay is gone"):
            checkpoints.save(tmp_path, 2, _state(2), keep=1, write_extra=fail)
        assert os.listdir(tmp_path) == ["1"]


class TestSchema:
    def test_other_version_is_refused_naming_both(self, tmp_path: Path) -> None:
        manifest = Path(checkpoints.save(tmp_path, 1, _state(1), keep=1)) / "manifest.json"
        content = json.loads(manifest.read_text())
        assert content["schema_version"] == checkpoints.SCHEMA_VERSION
        content["schema_version"] = 99
        manifest.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=f"version 99.*version {checkpoints.SCHEMA_VERSION}"):
            checkpoints.restore_latest(tmp_path)

    def test_damage_is_an_error_and_no_older_checkpoint(self, tmp_path: Path) -> None:
        for frames in (1, 2):
            path = checkpoints.save(tmp_path, frames, _state(frames), keep=2)
        for file in (Path(path) / "arrays").rglob("*"):
            if file.is_file():
                file.write_bytes(file.read_bytes()[:-7] + b"damaged")
        with pytest.raises(GorilaError, match=str(path)):
            checkpoints.restore_latest(tmp_path)


class _Killed(BaseException):
    """Stands for SIGKILL: nothing that handles errors may catch it."""


class TestInterrupted:
    """Every step of a save is where a kill may fall."""

    def _save_and_die(self, directory: Path, frames: int, step: int, patch: pytest.MonkeyPatch) -> bool:
        """Whether there was a `step`-th change of the directory to die before."""
        calls = 0

        def dying(function):
            def wrapped(*arguments, **options):
                nonlocal calls
                calls += 1
                if calls == step:
                    raise _Killed
                return function(*arguments, **options)

            return wrapped

        with patch.context() as context:
            for name in ("rename", "mkdir", "fsync", "unlink", "rmdir"):
                context.setattr(os, name, dying(getattr(os, name)))
            try:
                checkpoints.save(directory, frames, _state(frames), keep=2)
            except _Killed:
                return True
        return False

    @pytest.mark.parametrize("again", [False, True], ids=["new frames", "same frames again"])
    def test_old_or_new_but_never_half(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
    ) -> None:
        step, outcomes, died = 1, set(), True
        while died:
            directory = tmp_path / str(step)
            checkpoints.save(directory, 1, _state(1), keep=2)
            checkpoints.save(directory, 2, {**_state(2), "more": "old"}, keep=2)
            frames = 2 if again else 3
            died = self._save_and_die(directory, frames, step, monkeypatch)
            latest = checkpoints.restore_latest(directory)
            assert latest is not None
            old = "more" in latest[1]
            latest[1].pop("more", None)
            assert latest[0] == (2 if old else frames)
            _assert_of(latest[0], latest[1])
            assert died or not old
            outcomes.add(old)
            checkpoints.save(directory, 4, _state(4), keep=2)
            assert sorted(os.listdir(directory)) == [str(latest[0]), "4"]  # and nothing is left over
            step += 1
        assert outcomes == {True, False}
        assert step > 6

    def test_sigkill_at_random_moments(self, tmp_path: Path) -> None:
        program = (
            "import sys, numpy as np\n"
            "from gorila_jax import checkpoints\n"
            "_, state = checkpoints.restore_latest(sys.argv[1]) or (0, {'frames': 0})\n"
            "frames = state['frames']\n"
            "while True:\n"
            "    frames += 1\n"
            "    state = {'frames': frames, 'a': [np.full((256, 256), frames) for _ in range(4)]}\n"
            "    for _ in range(2):\n"
            "        checkpoints.save(sys.argv[1], frames, state, keep=2)\n"
            "        print(frames, flush=True)\n"
        )
        generator = random.Random(4)
        last = 0
        for _ in range(10):
            child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            seen = int(child.stdout.readline())
            time.sleep(generator.uniform(0, 0.15))  # any moment of a save, which takes about that long
            child.send_signal(signal.SIGKILL)
            seen = max([seen, *map(int, child.stdout.read().split()[:-1])])
            assert child.wait() == -signal.SIGKILL
            child.stdout.close()
            latest = checkpoints.restore_latest(tmp_path)
            assert latest is not None
            frames, state = latest
            assert frames >= max(seen, last)  # what was reported as saved is there
            assert state["frames"] == frames
            assert all(array.shape == (256, 256) and np.all(array == frames) for array in state["a"])
            last = frames
        checkpoints.save(tmp_path, last + 1, {}, keep=1)
        assert os.listdir(tmp_path) == [str(last + 1)]


class TestDisk:
    def test_file_in_place_of_the_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoints"
        path.write_text("precious")
        with pytest.raises(GorilaError, match=str(path)):
            checkpoints.save(path, 1, _state(1), keep=1)
        assert path.read_text() == "precious"

    def test_directory_that_went_away_is_made_again(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path / "a" / "b", 1, {"a": 1}, keep=1)
        assert checkpoints.list_checkpoints(tmp_path / "a" / "b") == [1]

    def test_full_disk(self, tmp_path: Path) -> None:
        """A limit on the size of files makes writes fail as a full disk does."""
        program = (
            "import resource, sys, numpy as np\n"
            "from gorila_jax import checkpoints\n"
            "from gorila_jax.types import GorilaError\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
            "checkpoints.save(sys.argv[1], 1, {'a': np.ones(10)}, keep=1)\n"
            "try:\n"
            "    checkpoints.save(sys.argv[1], 2, {'a': np.random.rand(1_000_000)}, keep=1)\n"
            "except GorilaError as error:\n"
            "    print(error)\n"
            "    print(checkpoints.restore_latest(sys.argv[1])[0])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        message, frames = done.stdout.rsplit("\n", 2)[:2]
        assert message.startswith(f"cannot save the checkpoint {tmp_path / '2'}: ")
        assert "File too large" in message
        assert frames == "1"
        assert os.listdir(tmp_path) == ["1"]


def test_a_process_that_saved_from_a_thread_exits_cleanly(tmp_path: Path) -> None:
    program = (
        "import sys, threading, numpy as np\n"
        "from gorila_jax import checkpoints\n"
        "save = lambda: checkpoints.save(sys.argv[1], 1, {'a': np.ones(10)}, keep=1)\n"
        "thread = threading.Thread(target=save)\n"
        "thread.start(); thread.join()\n"
        "print([t.name for t in threading.enumerate()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['MainThread']\n", "")
    assert checkpoints.list_checkpoints(tmp_path) == [1]
