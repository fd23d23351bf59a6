"""The devices a run computes on. Called before jax has started any backend."""

from __future__ import annotations

import os

import jax
import psutil

from gorila_jax.config import RunConfig
from gorila_jax.types import ConfigError

_FLAG = "--xla_force_host_platform_device_count"
THUNKS = "--xla_cpu_use_thunk_runtime"
_THREADS = "PJRT_NPROC"


def claim_devices(config: RunConfig) -> list[jax.Device]:
    """The devices of the learners, `config.host_devices` virtual ones if that is set.

    On the CPU, XLA opens its threads once per process, when jax starts: `config.xla_threads` of them or,
    where that is 0, what the environment variables PJRT_NPROC or NPROC say, or else one per core that the
    process may use. All learners and actors of a process share them, so they do not multiply with the
    actors, whose environment pools together have at most as many again (`choose_pool_threads`).

    One per core is the rule because it was the fastest on two cores with everything running (Gorila's small
    preset on Pong, in turns, beside other work): one thread leaves a core idle and gave a third of the
    updates, while three and four gave 5 % fewer and took 3 % more processor time for each. Learners sleep
    while the environments run ahead, and the other way round, so cores that were split between them in
    advance would lie idle.

    Raises:
      ConfigError: when the platform is not the one asked for, or jax started with other virtual devices or
        another number of threads.
    """
    if config.host_devices:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_FLAG)]
        os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}={config.host_devices}"])
    if config.xla_threads:
        _start_with_threads(config.xla_threads)
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


def prefer_fast_cpu_runtime() -> None:
    """Has XLA compile for the older of its two CPU runtimes, where there are two and nobody chose one.

    An update of the small network takes 1.6 times as much processor time with the newer one (jax 0.4.34,
    two cores). Later releases have only that one. Without effect once jax has started.

    It is for our own networks: with the older one the gradient of a strided convolution by its images, which
    ours never need, ends the process ("Check failed: use_thread_pool"). A user's network may need it.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.__version_info__ < (0, 5) and THUNKS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {THUNKS}=false".strip()


def _start_with_threads(number: int) -> None:
    """Starts jax with pools of `number` threads on the CPU. Raises ConfigError where it has started before,
    unless that was with as many."""
    before = os.environ.get(_THREADS)
    if before == str(number):
        return
    os.environ[_THREADS] = str(number)
    threads = psutil.Process().num_threads()
    jax.local_devices()
    if psutil.Process().num_threads() - threads >= number:
        return
    if before is None:
        del os.environ[_THREADS]
    else:
        os.environ[_THREADS] = before
    raise ConfigError(
        f"run.xla_threads is {number}, but jax already runs with others: set it before the first use of jax "
        "in the process"
    )


def _describe(devices: list[jax.Device]) -> str:
    return ", ".join(str(device) for device in devices) or "no device"
