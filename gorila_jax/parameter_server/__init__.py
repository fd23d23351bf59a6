"""The parameter server owns parameters, optimizer, target network and version."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server.device import DeviceParameterServer
from gorila_jax.parameter_server.host_state import STALENESS_BINS
from gorila_jax.parameter_server.optimizers import ELEMENTWISE, learning_rate, make_optimizer
from gorila_jax.parameter_server.sharded import Shard, ShardedParameterServer
from gorila_jax.types import Parameters

__all__ = [
    "ELEMENTWISE",
    "STALENESS_BINS",
    "DeviceParameterServer",
    "Shard",
    "ShardedParameterServer",
    "learning_rate",
    "make_optimizer",
    "make_parameter_server",
]


def make_parameter_server(
    parameters: Parameters, config: ParameterServerConfig, learner_devices: Sequence[Sequence[jax.Device]]
) -> DeviceParameterServer | ShardedParameterServer:
    """The form that fits: on the learner's devices for one learner and one shard, sharded otherwise.

    Args:
      parameters: what the network's `init` returned, without a device axis.
      config: optimizer, shards, staleness limit and target period.
      learner_devices: devices of every learner, in the order of its pmap.

    Raises:
      ConfigError: an optimizer, option or number of shards that cannot work.
    """
    if len(learner_devices) == 1 and config.num_shards == 1:
        return DeviceParameterServer(parameters, config, learner_devices[0])
    return ShardedParameterServer(parameters, config, learner_devices)
