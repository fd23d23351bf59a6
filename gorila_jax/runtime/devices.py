"""The devices a run computes on. Called before jax has started any backend."""

from __future__ import annotations

import os

import jax

from gorila_jax.config import RunConfig
from gorila_jax.types import ConfigError

_FLAG = "--xla_force_host_platform_device_count"


def claim_devices(config: RunConfig) -> list[jax.Device]:
    """The devices of the learners, `config.host_devices` virtual ones if that is set.

    Raises:
      ConfigError: when the platform is not the one asked for, or jax started with other virtual devices.
    """
    if config.host_devices:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_FLAG)]
        os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}={config.host_devices}"])
    try:
        devices = jax.local_devices(backend=config.platform or ("cpu" if config.host_devices else None))
    except RuntimeError as error:
        raise ConfigError(
            f"run.platform is {config.platform!r}, but jax finds only {_describe(jax.local_devices())}: "
            f"{error}"
        ) from error
    if config.host_devices and len(devices) != config.host_devices:
        raise ConfigError(
            f"run.host_devices is {config.host_devices}, but jax already runs with {_describe(devices)}: "
            "set it before the first use of jax in the process"
        )
    return devices


def _describe(devices: list[jax.Device]) -> str:
    return ", ".join(str(device) for device in devices) or "no device"
