"""User environments in processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import types
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.scaling import loaded_jax
from gorila_jax.types import GorilaError
from tests.environments.gymnasium_adapter import HERE, WALK, make, play, same


def test_processes_are_spawned_and_not_forked():
    environment = make(WALK, gymnasium_workers="processes")
    kinds = {type(process).__name__ for process in environment._vector.processes}
    environment.close()
    assert kinds == {"SpawnProcess"}  # a fork of a process in which JAX runs may freeze


def test_the_workers_ignore_ctrl_c_and_their_parent_does_not():
    before = signal.getsignal(signal.SIGINT)
    environment = make(WALK, gymnasium_workers="processes")
    try:
        assert before is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is before
        environment.reset()
        for process in environment._vector.processes:
            os.kill(process.pid, signal.SIGINT)
        environment.step(np.zeros(environment.num_environments, np.int32))
    finally:
        environment.close()


@pytest.mark.parametrize("actions", [[0, 1], [1, 0], [1, 1]])
def test_a_process_that_dies_is_an_error(actions):
    environment = make(f"{HERE}:dying", gymnasium_workers="processes")
    environment.reset()
    with pytest.raises(GorilaError, match="dying: one of its processes has died"):
        environment.step(np.array(actions, np.int32))
    environment.close()
    environment.close()
    assert not any(process.is_alive() for process in environment._vector.processes)


def test_a_process_that_has_died_between_two_steps_does_not_keep_the_others_from_closing():
    environment = make(WALK, gymnasium_workers="processes")
    environment.reset()
    processes = environment._vector.processes
    processes[0].kill()
    processes[0].join()
    environment.close()
    assert not any(process.is_alive() for process in processes)


def test_processes_take_their_step_before_it_is_asked_for():
    environment = make(WALK, gymnasium_workers="processes")
    environment.reset()
    environment.send(np.zeros(2, np.int32))
    assert [pipe.poll(60) for pipe in environment._vector.parent_pipes] == [True, True]
    environment.recv()
    environment.close()


@pytest.mark.parametrize("factory", ["dying", "failing", "hanging"])
def test_processes_are_closed_with_a_bad_step_under_way(monkeypatch, factory):
    monkeypatch.setattr("gorila_jax.environments.gymnasium._CLOSE_TIMEOUT_S", 1.0)
    for index in (0, 1):
        environment = make(f"{HERE}:{factory}", gymnasium_workers="processes")
        environment.reset()
        actions = np.zeros(2, np.int32)
        actions[index] = 1
        environment.send(actions)
        environment.close()
        environment.close()
        assert not any(process.is_alive() for process in environment._vector.processes)


def main_module(path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Makes a script of this path, which would be run by spawned processes, this process's main module."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    exec(path.read_text(), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_processes_do_not_load_jax_with_the_main_module(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import jax\n")
    main = main_module(script, monkeypatch)
    environment = make(WALK, gymnasium_workers="processes")
    assert sys.modules["__main__"] is main
    try:
        environment.reset()
        for process in environment._vector.processes:
            assert not loaded_jax(psutil.Process(process.pid))
    finally:
        environment.close()


def test_the_main_module_is_back_after_processes_that_do_not_start(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        f"import os\nfrom {HERE} import Walk\n\n"
        f"def make():\n    return Walk() if os.getpid() == {os.getpid()} else os._exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    main = sys.modules["__main__"]
    with pytest.raises(GorilaError, match="only_here:make: one of its processes has died"):
        make("only_here:make", gymnasium_workers="processes")
    assert sys.modules["__main__"] is main


def test_processes_know_a_factory_of_the_main_module(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(f"from {HERE} import Walk\n\ndef make():\n    return Walk()\n")
    main_module(script, monkeypatch)
    serial = play(make("__main__:make"), steps=5)
    assert same(serial, play(make("__main__:make", gymnasium_workers="processes"), steps=5))
