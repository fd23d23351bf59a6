"""The parameter server of many learners: independent shards, as in DistBelief.

The parameters are one flat float32 vector, cut into slices; each shard applies the optimizer to its own slice
under its own lock and counts its own versions (Gorila, arXiv:1507.04296, section 4).
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import host_state
from gorila_jax.parameter_server.device import all_finite, donation_pays, first_shards
from gorila_jax.parameter_server.host_state import STALENESS_BINS
from gorila_jax.parameter_server.optimizers import make_optimizer
from gorila_jax.types import ConfigError, Gradient, Parameters, ServerStatus, Snapshot


class ShardSnapshot(NamedTuple):
    """One shard at one moment."""

    version: int  # updates that this shard applied
    parameters: Any  # [n] float32
    target_version: int
    target_parameters: Any  # [n] float32


class ShardFunctions(NamedTuple):
    """Jitted once and shared by all shards, so that two sizes of slices mean two compilations."""

    init: Callable[[jax.Array], Any]  # parameters [n] to optimizer state
    apply: Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]  # may donate state and gradient
    copy: Callable[[Any], Any]


class Shard:
    """A slice of the flat parameter vector with its optimizer state, version and target. Thread-safe."""

    def __init__(
        self,
        parameters: np.ndarray,
        device: jax.Device,
        functions: ShardFunctions,
        target_period_updates: int,
        max_staleness_updates: int,
    ) -> None:
        """`parameters` [n] float32 are copied to `device`, where this shard computes."""
        self.device = device
        self._functions = functions
        self._target_period_updates = target_period_updates
        self._max_staleness_updates = max_staleness_updates
        self._lock = threading.Lock()
        self._parameters = self._put(parameters)
        self._optimizer_state = self._put(functions.init(self._parameters))
        self._version = 0
        self._target_parameters = self._parameters
        self._target_version = 0

    def push(self, version: int, gradient: jax.Array) -> int | None:
        """Applies `gradient` [n] (it may be consumed), computed from the slice of that `version`.

        Returns:
          Its age in this shard's updates, or None if it was refused as older than the limit. A version ahead
          of the shard's, from before a restore, is as stale as one equally far behind.
        """
        gradient = jax.device_put(gradient, self.device)
        with self._lock:
            age = abs(self._version - version)
            if 0 < self._max_staleness_updates < age:
                return None
            self._parameters, self._optimizer_state = self._functions.apply(
                self._parameters, self._optimizer_state, gradient
            )
            self._version += 1
            if self._version % self._target_period_updates == 0:
                self._target_parameters, self._target_version = self._parameters, self._version
            return age

    def pull(self) -> ShardSnapshot:
        """Version, slice and target that belong together; references, for parameters are never donated."""
        with self._lock:
            return self._snapshot()

    def state(self) -> tuple[ShardSnapshot, Any]:
        """A consistent snapshot and a copy of the optimizer state, both still on the device."""
        with self._lock:
            # A copy, because the next push donates the optimizer state.
            return self._snapshot(), self._functions.copy(self._optimizer_state)

    def restore(self, snapshot: ShardSnapshot, optimizer_state: Any) -> None:
        """Takes back what `state` gave, as host arrays."""
        with self._lock:
            self._parameters = self._put(snapshot.parameters)
            self._target_parameters = self._put(snapshot.target_parameters)
            self._optimizer_state = self._put(optimizer_state)
            self._version, self._target_version = snapshot.version, snapshot.target_version

    def _snapshot(self) -> ShardSnapshot:
        return ShardSnapshot(self._version, self._parameters, self._target_version, self._target_parameters)

    def _put(self, tree: Any) -> Any:
        # Copied, because a transfer may share the host's memory on the CPU and what gets donated must be ours
        # alone. Put there even if it is there: the placement is part of what `apply` is compiled for.
        return self._functions.copy(jax.device_put(tree, self.device))


class ShardedParameterServer:
    """`types.ParameterServer` for any number of learners, over S shards.

    A snapshot's version is a tuple of S ints. A gradient that is non-finite or an outlier reaches no shard;
    staleness is judged by each shard alone, so a gradient may be applied by some and refused by others: it
    then counts as stale. `accepted` are those that every shard applied, and the histogram holds the greatest
    of their ages.
    """

    def __init__(
        self,
        parameters: Parameters,
        config: ParameterServerConfig,
        learner_devices: Sequence[Sequence[jax.Device]],
        donate: bool | None = None,
    ) -> None:
        """
        Args:
          parameters: the network's, without a device axis; float32 throughout.
          config: of the server; `num_shards` from 1 to the number of single parameters.
          learner_devices: devices of every learner, in the order of its pmap. The shards take turns on them.
          donate: whether optimizer states and slices of gradients are; None: see `device.donation_pays`.

        Raises:
          ConfigError: from `make_optimizer`; parameters of another type; more shards than single parameters.
        """
        optimizer = make_optimizer(config, sharded=True)
        # Copied first: a transfer may read the caller's arrays only later.
        host = jax.tree.map(np.array, parameters)
        for path, leaf in jax.tree_util.tree_flatten_with_path(host)[0]:
            if leaf.dtype != np.float32:
                raise ConfigError(
                    "The sharded parameter server holds float32 only; "
                    f"{jax.tree_util.keystr(path)} is {leaf.dtype}."
                )
        flat, self._unravel = jax.flatten_util.ravel_pytree(host)
        if not 1 <= config.num_shards <= flat.size:
            raise ConfigError(
                f"parameter_server.num_shards={config.num_shards} has to lie between 1 and the number of "
                f"parameters, {flat.size}."
            )
        # dict.fromkeys: each device once, in order, though several learners may share one.
        devices = list(dict.fromkeys(device for devices in learner_devices for device in devices))
        donate = donation_pays(devices) if donate is None else donate
        bounds = [i * flat.size // config.num_shards for i in range(config.num_shards + 1)]
        self._slices = [slice(start, end) for start, end in itertools.pairwise(bounds)]
        functions = ShardFunctions(
            init=jax.jit(optimizer.init),
            apply=jax.jit(
                functools.partial(_apply, optimizer=optimizer), donate_argnums=(1, 2) if donate else ()
            ),
            copy=jax.jit(lambda tree: jax.tree.map(jnp.copy, tree)),
        )
        flat_host = np.asarray(flat)
        self._shards = [
            Shard(
                flat_host[part],
                devices[i % len(devices)],
                functions,
                config.target_period_updates,
                config.max_staleness_updates,
            )
            for i, part in enumerate(self._slices)
        ]
        self._split = jax.jit(self._split_gradient)
        self._assemble = jax.jit(self._assemble_parameters)
        self._policy_device = devices[0]
        self._learner_devices = [tuple(devices) for devices in learner_devices]
        # Learners that share a device share the compiled function.
        self._assemble_replicated = {
            devices: jax.pmap(self._assemble_parameters, devices=devices)
            for devices in set(self._learner_devices)
        }
        self._targets: list[tuple[list[jax.Array], Parameters] | None] = [None] * len(learner_devices)
        self._counter_lock = threading.Lock()
        self._accepted = self._stale = self._outlier = self._nonfinite = 0
        self._histogram = [0] * STALENESS_BINS

    def pull(self, learner: int) -> Snapshot:
        """Versions (one int per shard), parameters and target [D, ...] on the devices of `learner`.

        Each shard's version, slice and target belong together. A target that the learner has is not sent.
        """
        shards = [shard.pull() for shard in self._shards]
        targets = [shard.target_parameters for shard in shards]
        cached = self._targets[learner]
        # By identity: after a restore the same target version may come again with other values.
        if cached is None or any(old is not new for old, new in zip(cached[0], targets, strict=True)):
            cached = self._targets[learner] = targets, self._send(learner, targets)
        parameters = self._send(learner, [shard.parameters for shard in shards])
        return Snapshot(tuple(shard.version for shard in shards), parameters, cached[1])

    def pull_policy(self) -> tuple[int, Parameters]:
        """(version of the least advanced shard, parameters) on the first learner's first device."""
        shards = [shard.pull() for shard in self._shards]
        slices = jax.device_put([shard.parameters for shard in shards], self._policy_device)
        return min(shard.version for shard in shards), self._assemble(slices)

    def push(self, learner: int, gradient: Gradient) -> None:
        """Hands every shard its slice, or refuses and counts the gradient. Waits until it is computed.

        Raises:
          ValueError: the gradient's version is not of as many shards.
        """
        finite, slices = self._split(first_shards(gradient.gradients))
        if not (_flag(gradient.finite) and bool(finite)):
            with self._counter_lock:
                self._nonfinite += 1
            return
        if _flag(gradient.outlier):
            with self._counter_lock:
                self._outlier += 1
            return
        work = list(zip(self._shards, gradient.version, slices, strict=True))
        # Each learner starts at another shard, so that they do not queue for the same locks.
        start = learner % len(work)
        ages = [shard.push(version, part) for shard, version, part in work[start:] + work[:start]]
        applied = [age for age in ages if age is not None]
        with self._counter_lock:
            if len(applied) == len(ages):
                self._accepted += 1
                self._histogram[min(max(applied), STALENESS_BINS - 1)] += 1
            else:
                self._stale += 1

    def status(self) -> ServerStatus:
        """Counters of the pushes that have returned; both versions are the least advanced shard's."""
        return self._status([shard.pull() for shard in self._shards])

    def state(self) -> host_state.State:
        """See `host_state`. Each shard is consistent; pushes may come between one shard and the next."""
        states = [shard.state() for shard in self._shards]
        shards = [snapshot for snapshot, _ in states]
        return {
            "parameters": self._to_host([shard.parameters for shard in shards]),
            "target_parameters": self._to_host([shard.target_parameters for shard in shards]),
            "optimizer": {str(i): host_state.to_host(optimizer) for i, (_, optimizer) in enumerate(states)},
            "versions": np.array([shard.version for shard in shards], np.int64),
            "target_versions": np.array([shard.target_version for shard in shards], np.int64),
            "counters": host_state.counters_state(self._status(shards)),
        }

    def restore(self, state: host_state.State) -> None:
        """Takes back what `state` gave. Training continues with the same bits.

        Raises:
          ConfigError: `state` is of another number of shards, network, optimizer or form of the server.
        """
        host_state.check_fits(self.state(), state)
        parameters, target = self._from_host(state["parameters"]), self._from_host(state["target_parameters"])
        for i, (shard, part) in enumerate(zip(self._shards, self._slices, strict=True)):
            snapshot = ShardSnapshot(
                int(state["versions"][i]), parameters[part], int(state["target_versions"][i]), target[part]
            )
            shard.restore(snapshot, host_state.from_host(shard.state()[1], state["optimizer"][str(i)]))
        counters = state["counters"]
        with self._counter_lock:
            self._accepted, self._stale = int(counters["accepted"]), int(counters["stale"])
            self._outlier, self._nonfinite = int(counters["outlier"]), int(counters["nonfinite"])
            self._histogram = [int(count) for count in counters["staleness_histogram"]]

    def _send(self, learner: int, slices: list[jax.Array]) -> Parameters:
        """Slices on any devices to parameters [D, ...] on the learner's."""
        devices = self._learner_devices[learner]
        return self._assemble_replicated[devices](jax_utils.replicate(slices, devices))

    def _status(self, shards: list[ShardSnapshot]) -> ServerStatus:
        with self._counter_lock:
            return ServerStatus(
                version=min(shard.version for shard in shards),
                target_version=min(shard.target_version for shard in shards),
                accepted=self._accepted,
                stale=self._stale,
                outlier=self._outlier,
                nonfinite=self._nonfinite,
                staleness_histogram=tuple(self._histogram),
            )

    def _to_host(self, slices: list[jax.Array]) -> Any:
        return host_state.to_host(self._unravel(np.concatenate([np.asarray(part) for part in slices])))

    def _from_host(self, saved: Any) -> np.ndarray:
        template = self._unravel(np.zeros(self._slices[-1].stop, np.float32))
        leaves = jax.tree.leaves(host_state.from_host(template, saved))
        return np.concatenate([np.ravel(leaf) for leaf in leaves])

    def _split_gradient(self, gradients: Parameters) -> tuple[jax.Array, list[jax.Array]]:
        """Gradients [1, ...] to (whether all are finite, a slice for every shard)."""
        flat, _ = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x[0], gradients))
        return all_finite(flat), [flat[part] for part in self._slices]

    def _assemble_parameters(self, slices: list[jax.Array]) -> Parameters:
        return self._unravel(jnp.concatenate(slices))


def _apply(
    parameters: jax.Array,
    optimizer_state: Any,
    gradient: jax.Array,
    *,
    optimizer: optax.GradientTransformation,
) -> tuple[jax.Array, Any]:
    updates, new_state = optimizer.update(gradient, optimizer_state, parameters)
    # As in the old state, so that a weak type that optax returns does not compile a second time.
    new_state = jax.tree.map(lambda new, old: new.astype(old.dtype), new_state, optimizer_state)
    return optax.apply_updates(parameters, updates), new_state


def _flag(flag: Any) -> bool:
    return bool(np.ravel(first_shards(flag))[0])
