"""The parameter server of one learner: it lives on the learner's own devices.

`push` only starts work there and decides nothing on the host, so the learner's next update is under way
before this one is finished.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import host_state
from gorila_jax.parameter_server.host_state import STALENESS_BINS
from gorila_jax.parameter_server.optimizers import make_optimizer
from gorila_jax.rl.sums import total
from gorila_jax.types import Gradient, Parameters, ServerStatus, Snapshot


class Book(NamedTuple):
    """What the server counts, kept on the device. All int32; scalars, but for the histogram."""

    version: Any  # updates applied
    stale: Any
    outlier: Any
    nonfinite: Any
    staleness_histogram: Any  # [STALENESS_BINS], of the updates applied


def apply_gradient(
    parameters: Parameters,
    optimizer_state: Any,
    book: Book,
    gradients: Parameters,
    version: jax.Array,
    finite: jax.Array,
    outlier: jax.Array,
    *,
    optimizer: optax.GradientTransformation,
    max_staleness_updates: int,
) -> tuple[Parameters, Any, Book]:
    """Applies one gradient or refuses it (Gorila, arXiv:1507.04296, section 4).

    A refused gradient leaves parameters and optimizer state as they are, bit for bit, and is counted under
    the first of these that holds: non-finite (by its flag or by its values), outlier, stale.

    Args:
      parameters: the current ones.
      optimizer_state: of `optimizer`.
      book: version and counters.
      gradients: shaped as `parameters`.
      version: int32 scalar, of the parameters that `gradients` were computed from. One ahead of the book's (a
        learner's that outlived a restore) is as far from the current parameters as one behind: both are aged.
      finite: bool scalar, the learner's word on it.
      outlier: bool scalar, likewise.
      optimizer: optax.
      max_staleness_updates: gradients of a greater age are stale; 0: none is.

    Returns:
      Parameters, optimizer state and book after it.
    """
    age = jnp.abs(book.version - version)
    is_nonfinite = ~(finite & all_finite(gradients))
    is_outlier = outlier & ~is_nonfinite
    is_stale = (age > max_staleness_updates) & (max_staleness_updates > 0) & ~is_nonfinite & ~is_outlier
    accepted = ~(is_nonfinite | is_outlier | is_stale)

    updates, new_optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
    new_parameters = optax.apply_updates(parameters, updates)

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(accepted, new, old).astype(old.dtype)

    age_bin = jnp.minimum(age, STALENESS_BINS - 1)
    return (
        jax.tree.map(choose, new_parameters, parameters),
        jax.tree.map(choose, new_optimizer_state, optimizer_state),
        Book(
            version=book.version + accepted,
            stale=book.stale + is_stale,
            outlier=book.outlier + is_outlier,
            nonfinite=book.nonfinite + is_nonfinite,
            staleness_histogram=book.staleness_histogram.at[age_bin].add(accepted.astype(jnp.int32)),
        ),
    )


class DeviceParameterServer:
    """`types.ParameterServer` for one learner, its number being 0. Everything is replicated over its devices.

    A gradient given to `push` is consumed: its buffers are donated (not its version and flags). Parameters
    are never donated, so a pull is a reference and costs nothing.
    """

    def __init__(
        self,
        parameters: Parameters,
        config: ParameterServerConfig,
        devices: Sequence[jax.Device],
        donate: bool | None = None,
    ) -> None:
        """
        Args:
          parameters: the network's, without a device axis.
          config: `num_shards` is ignored.
          devices: of the learner, in the order of its own pmap.
          donate: whether gradients and optimizer state are; None: see `donation_pays`.

        Raises:
          ConfigError: from `make_optimizer`.
        """
        optimizer = make_optimizer(config)
        donate = donation_pays(devices) if donate is None else donate
        self._devices = list(devices)
        self._target_period_updates = config.target_period_updates
        self._apply = jax.pmap(
            functools.partial(
                apply_gradient, optimizer=optimizer, max_staleness_updates=config.max_staleness_updates
            ),
            donate_argnums=(1, 3) if donate else (),
            devices=self._devices,
        )
        self._copy = jax.pmap(lambda tree: jax.tree.map(jnp.copy, tree), devices=self._devices)
        self._lock = threading.Lock()
        self._version_bound = 0
        zero = np.zeros((), np.int32)
        book = Book(zero, zero, zero, zero, np.zeros(STALENESS_BINS, np.int32))
        # Copied first: a transfer may read the caller's arrays only later.
        self._parameters = self._replicate(jax.tree.map(np.array, parameters))
        self._optimizer_state = jax.pmap(optimizer.init, devices=self._devices)(self._parameters)
        self._book = self._replicate(book)
        self._set_target(self._parameters, 0, 0)

    def pull(self, learner: int) -> Snapshot:
        """Version [D], parameters and target [D, ...], without waiting for them to be computed."""
        with self._lock:
            return Snapshot(self._book.version, self._parameters, self._target)

    def pull_policy(self) -> tuple[int, Parameters]:
        """(version, parameters) on the learner's first device. Waits for the updates under way."""
        with self._lock:
            version, parameters = self._book.version, self._parameters
        version, parameters = first_replica((version, parameters))
        return int(version), parameters

    def push(self, learner: int, gradient: Gradient) -> None:
        """Applies or refuses `gradient` on the devices and returns before that is done.

        Every `target_period_updates` *applied* updates the target becomes the parameters, exactly then. Only
        the devices know how many were applied, so the host keeps an upper bound and asks them when it reaches
        the next multiple: once per period, and again after refusals.
        """
        with self._lock:
            self._parameters, self._optimizer_state, self._book = self._apply(
                self._parameters,
                self._optimizer_state,
                self._book,
                gradient.gradients,
                gradient.version,
                gradient.finite,
                gradient.outlier,
            )
            self._version_bound += 1
            if self._version_bound == self._next_target_version:
                version = int(first_replica(self._book.version))
                if version == self._next_target_version:
                    self._set_target(self._parameters, version, version)
                else:
                    self._version_bound = version

    def status(self) -> ServerStatus:
        """The counters as of the last push; waits for its update."""
        with self._lock:
            book, target_version = self._book, self._target_version
        return _status(book, target_version)

    def state(self) -> host_state.State:
        """See `host_state`. Consistent: of one version."""
        with self._lock:
            parameters, target, book = self._parameters, self._target, self._book
            target_version = self._target_version
            # The next push donates the optimizer state: what leaves the lock is a copy. Making it only starts
            # work on the device; reading it, below, is what takes time.
            optimizer_state = first_replica(self._optimizer_state)
        parameters, target = first_replica((parameters, target))
        status = _status(book, target_version)
        return {
            "parameters": host_state.to_host(parameters),
            "target_parameters": host_state.to_host(target),
            "optimizer": {"0": host_state.to_host(optimizer_state)},
            "versions": np.array([status.version], np.int64),
            "target_versions": np.array([target_version], np.int64),
            "counters": host_state.counters_state(status),
        }

    def restore(self, state: host_state.State) -> None:
        """Takes back what `state` gave. Training continues with the same bits.

        Raises:
          ConfigError: `state` is of another network, optimizer or form of the server.
        """
        host_state.check_fits(self.state(), state)
        counters = state["counters"]
        version, target_version = int(state["versions"][0]), int(state["target_versions"][0])
        with self._lock:
            template = first_replica(self._parameters)
            parameters = host_state.from_host(template, state["parameters"])
            target = host_state.from_host(template, state["target_parameters"])
            optimizer_state = host_state.from_host(
                first_replica(self._optimizer_state), state["optimizer"]["0"]
            )
            book = Book(
                version=np.int32(version),
                stale=np.int32(counters["stale"]),
                outlier=np.int32(counters["outlier"]),
                nonfinite=np.int32(counters["nonfinite"]),
                staleness_histogram=np.array(counters["staleness_histogram"], np.int32),
            )
            self._parameters, target, self._optimizer_state, self._book = self._replicate(
                (parameters, target, optimizer_state, book)
            )
            self._set_target(target, target_version, version)

    def _set_target(self, target: Parameters, target_version: int, version: int) -> None:
        period = self._target_period_updates
        self._target: Parameters = target
        self._target_version: int = target_version
        self._version_bound = version
        self._next_target_version: int = (version // period + 1) * period

    def _replicate(self, tree: Any) -> Any:
        # The copy on the devices is there because a transfer may share the host's memory on the CPU, and the
        # optimizer's buffers are about to be donated.
        return self._copy(jax_utils.replicate(tree, self._devices))


def _status(book: Book, target_version: int) -> ServerStatus:
    host = jax.tree.map(np.asarray, first_replica(book))
    return ServerStatus(
        version=int(host.version),
        target_version=target_version,
        accepted=int(host.version),
        stale=int(host.stale),
        outlier=int(host.outlier),
        nonfinite=int(host.nonfinite),
        staleness_histogram=tuple(int(count) for count in host.staleness_histogram),
    )


def all_finite(tree: Any) -> jax.Array:
    """Whether a pytree holds no NaN and no infinity, and adds up to a float32: bool scalar."""
    # A sum with a NaN or an infinity in it is never finite. On a CPU to add takes less than half as long
    # as to look at every element, and XLA does not concatenate a flat vector a second time for it.
    sums = [total(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.isfinite(sum(sums, start=jnp.zeros(())))


def donation_pays(devices: Sequence[jax.Device]) -> bool:
    """Everywhere but on the CPU, where a call with donated buffers waits for its result (jax 0.4.34)."""
    return devices[0].platform != "cpu"


def first_replica(tree: Any) -> Any:
    """A copy of replica 0 of a pytree with leading axis [D], on that replica's device, without the axis."""
    return _without_device_axis(first_shards(tree))


def first_shards(tree: Any) -> Any:
    """The part of a pytree [D, ...] that lies on its first device, [1, ...]; host arrays as they are."""
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)


@jax.jit
def _without_device_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)
