from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import DeviceParameterServer, ShardedParameterServer, make_parameter_server
from gorila_jax.types import ConfigError
from tests.parameter_server.problem import filled, make_server


def test_one_learner_and_one_shard_live_on_the_devices_all_others_are_sharded() -> None:
    devices = jax.devices()[:1]
    assert isinstance(
        make_parameter_server(filled(0), ParameterServerConfig(num_shards=1), [devices]),
        DeviceParameterServer,
    )
    for num_shards, learners in ((2, 1), (1, 2), (3, 2)):
        config = ParameterServerConfig(num_shards=num_shards)
        server = make_parameter_server(filled(0), config, [devices] * learners)
        assert isinstance(server, ShardedParameterServer)


def test_slices_differ_by_at_most_one() -> None:
    config = ParameterServerConfig(num_shards=7)
    server = make_parameter_server({"w": np.zeros(100, np.float32)}, config, [jax.devices()[:1]])
    sizes = [shard.pull().parameters.size for shard in server._shards]
    assert (sum(sizes), len(sizes)) == (100, 7)
    assert max(sizes) - min(sizes) == 1


@pytest.mark.parametrize("num_shards", [0, 17])
def test_more_shards_than_parameters_or_none_are_refused(num_shards: int) -> None:
    with pytest.raises(ConfigError, match=rf"num_shards={num_shards} .*between 1 and .*16"):
        ShardedParameterServer(filled(0), ParameterServerConfig(num_shards=num_shards), [jax.devices()[:1]])


def test_the_sharded_form_holds_float32_only() -> None:
    with pytest.raises(ConfigError, match=r"float32 only.*half.*float16"):
        make_server("three_shards", {"half": np.zeros(8, np.float16)})


@pytest.mark.parametrize("num_shards", [1, 3])
def test_initial_parameters_are_copied(num_shards: int) -> None:
    initial = {"w": np.ones(1024, np.float32)}
    server = make_parameter_server(initial, ParameterServerConfig(num_shards=num_shards), [jax.devices()[:1]])
    initial["w"][:] = 2
    assert jnp.all(server.pull_policy()[1]["w"] == 1)
    assert jnp.all(server.pull(0).target_parameters["w"] == 1)


def test_four_devices_equal_one() -> None:
    root = pathlib.Path(__file__).parents[2]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(root),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.parameter_server.four_devices"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "equal\n"
