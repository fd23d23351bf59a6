"""No silent fall-back to another device, and threads as they were asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from gorila_jax.config import RunConfig
from gorila_jax.runtime.devices import claim_devices, prefer_fast_cpu_runtime
from gorila_jax.types import ConfigError


@pytest.fixture(autouse=True)
def same_environment_afterwards(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    monkeypatch.setenv("PJRT_NPROC", "61")


def test_what_jax_finds_is_taken_unless_a_platform_is_named():
    assert claim_devices(RunConfig()) == jax.local_devices()
    assert {device.platform for device in claim_devices(RunConfig(platform="cpu"))} == {"cpu"}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="this machine has an accelerator")
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_an_accelerator_that_is_not_there_is_refused_with_the_devices_there_are(platform):
    with pytest.raises(ConfigError, match=rf"run\.platform is '{platform}'.*{jax.local_devices()[0]}"):
        claim_devices(RunConfig(platform=platform))


def test_virtual_devices_after_jax_has_started_are_refused():
    there = len(jax.local_devices(backend="cpu"))
    with pytest.raises(ConfigError, match=f"run.host_devices is {there + 1}.*before the first use of jax"):
        claim_devices(RunConfig(host_devices=there + 1))


def test_the_number_of_virtual_devices_replaces_an_older_one_and_leaves_other_flags(monkeypatch):
    chosen = "--xla_cpu_use_thunk_runtime=true"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count=9 {chosen}")
    there = len(jax.local_devices(backend="cpu"))
    assert len(claim_devices(RunConfig(host_devices=there))) == there
    assert os.environ["XLA_FLAGS"].split() == [chosen, f"--xla_force_host_platform_device_count={there}"]


def test_the_fast_runtime_is_chosen_where_there_are_two(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--other=1")
    prefer_fast_cpu_runtime()
    two = jax.__version_info__ < (0, 5)
    assert os.environ["XLA_FLAGS"] == "--other=1" + two * " --xla_cpu_use_thunk_runtime=false"
    prefer_fast_cpu_runtime()
    assert os.environ["XLA_FLAGS"].count("thunk") == two


def test_what_was_chosen_stays(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_thunk_runtime=true")
    prefer_fast_cpu_runtime()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_use_thunk_runtime=true"


_THREADS = """
import sys
import psutil
from gorila_jax.config import RunConfig
from gorila_jax.runtime.devices import claim_devices
claim_devices(RunConfig(xla_threads=int(sys.argv[1])))
print(psutil.Process().num_threads())
claim_devices(RunConfig(xla_threads=int(sys.argv[1])))  # of another run in the same process
"""


def _threads_of_a_process(xla_threads: int, **environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in ("PJRT_NPROC", "NPROC")}
    done = subprocess.run(
        [sys.executable, "-c", _THREADS, str(xla_threads)],
        env=kept | {"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(done.stdout)


def test_jax_computes_with_as_many_threads_as_were_asked_for():
    one = _threads_of_a_process(1)
    assert one + 6 <= _threads_of_a_process(7, PJRT_NPROC="2", NPROC="3")  # before what the shell says
    assert one + 4 <= _threads_of_a_process(0, PJRT_NPROC="5")  # which holds where nothing was asked for


def test_threads_after_jax_has_started_are_refused_and_nothing_is_left_behind(monkeypatch):
    jax.local_devices()
    for before in ("61", None):
        if before is None:
            monkeypatch.delenv("PJRT_NPROC")
        with pytest.raises(ConfigError, match=r"run\.xla_threads is 57.*before the first use of jax"):
            claim_devices(RunConfig(xla_threads=57))
        assert os.environ.get("PJRT_NPROC") == before
