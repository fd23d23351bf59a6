"""No silent fall-back to another device (PITFALLS J9)."""

from __future__ import annotations

import os

import jax
import pytest

from gorila_jax.config import RunConfig
from gorila_jax.runtime.devices import claim_devices
from gorila_jax.types import ConfigError


@pytest.fixture(autouse=True)
def same_environment_afterwards(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")


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
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=9 --other=1")
    there = len(jax.local_devices(backend="cpu"))
    assert len(claim_devices(RunConfig(host_devices=there))) == there
    assert os.environ["XLA_FLAGS"].split() == ["--other=1", f"--xla_force_host_platform_device_count={there}"]
