"""A client of one server, which knows whose server it is and notices when that changes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import reverb
import tensorflow as tf
from reverb.errors import DeadlineExceededError

from gorila_jax.replay.reverb.tables import TableName, item_signature
from gorila_jax.replay.table import TableSpec
from gorila_jax.types import ConfigError, ReplayError

_TRIES = 10


class Connection:
    """To one server of this run. Raises ReplayError when it does not answer or is somebody else's."""

    def __init__(self, address: str, run_id: str, table: TableSpec, numbers: Sequence[int], timeout_s: float):
        """Asks the server who it is.

        Args:
          address: host:port.
          numbers: of the tables that this server must hold.
          timeout_s: how long to wait for its first answer.
        """
        _bypass_proxy(address)
        self.address = address
        self.client = reverb.Client(address)
        self._run_id = run_id
        self._numbers = tuple(numbers)
        self._fault = ""
        names = self._ask(timeout_s)
        self.incarnation = self._own(names)
        self._check_settings(names, table)

    def table_name(self, number: int) -> str:
        return str(TableName(self._run_id, self.incarnation, number))

    def info(self, number: int, timeout_s: float) -> Any:
        """Reverb's `TableInfo` of one table, fresh."""
        self.check()
        infos = self._ask(timeout_s)
        self._same(infos)
        return infos[self.table_name(number)]

    def check(self) -> None:
        """Raises ReplayError once the server was found dead or exchanged. It costs nothing."""
        if self._fault:
            raise ReplayError(self._fault)

    def probe(self, timeout_s: float) -> None:
        """Asks the server whether it still is the one we know; what is wrong is kept for `check`."""
        try:
            self._same(self._ask(timeout_s))
        except ReplayError as error:
            self._fault = str(error)

    def _ask(self, timeout_s: float) -> dict[str, Any]:
        # A connection that breaks under a question fails it at once; asked again, it waits for a new one.
        failure: Exception | None = None
        for _ in range(_TRIES):
            try:
                return self.client.server_info(max(1, round(timeout_s)))
            except DeadlineExceededError as error:
                raise ReplayError(
                    f"no replay server answers at {self.address} (waited {timeout_s:g} s): it died, never "
                    "started, or the address is wrong"
                ) from error
            except (RuntimeError, ValueError) as error:
                failure = error
        raise ReplayError(f"no replay server answers at {self.address}: {failure}") from failure

    def _own(self, names: dict[str, Any]) -> str:
        """The incarnation of the server, when it holds this run's tables."""
        tables = [parsed for parsed in map(TableName.parse, names) if parsed is not None]
        own = [parsed for parsed in tables if parsed.run_id == self._run_id]
        if not own:
            others = sorted({parsed.run_id for parsed in tables}) or sorted(names)
            raise ReplayError(
                f"the replay server at {self.address} belongs to {', '.join(others)}, not to this run, "
                f"{self._run_id}: nothing was sent to it"
            )
        missing = sorted(set(self._numbers) - {parsed.number for parsed in own})
        if missing:
            raise ReplayError(
                f"the replay server at {self.address} holds the tables "
                f"{sorted(parsed.number for parsed in own)} of this run, but not {missing}: are the "
                "addresses in order, and started for as many servers?"
            )
        return own[0].incarnation

    def _same(self, names: dict[str, Any]) -> None:
        incarnation = self._own(names)
        if incarnation != self.incarnation:
            raise ReplayError(
                f"the replay server at {self.address} was restarted and lost all its items; continue from a "
                "checkpoint"
            )

    def _check_settings(self, infos: dict[str, Any], table: TableSpec) -> None:
        expected = _settings_of_spec(table)
        for number in self._numbers:
            found = _settings_of_info(infos[self.table_name(number)])
            if found != expected:
                raise ConfigError(
                    f"table {number} of the replay server at {self.address} has other settings than this "
                    "run. Start both with the same agent, environment, env.*, network.core*, sequence.*, "
                    "learner.n_steps and replay.*:\n"
                    + "\n".join(
                        f"  {name}: {found[name]} there, {expected[name]} here"
                        for name in expected
                        if found[name] != expected[name]
                    )
                )


class Watch:
    """Looks after connections to servers in other processes, in a thread that only asks and notes.

    Reverb itself says nothing when a server dies, and nothing when an empty one takes its place.
    """

    def __init__(self, connections: Sequence[Connection], period_s: float, silence_s: float):
        """Starts one thread per connection, for a question to a dead server must not delay the others.

        Args:
          period_s: between two questions.
          silence_s: a server that does not answer for so long counts as dead.
        """
        self._period_s = period_s
        self._silence_s = silence_s
        self._stopped = threading.Event()
        for connection in connections:
            # Here and not in runtime/, because only Reverb servers need it. A daemon, because a question
            # to a dead server cannot be taken back.
            thread = threading.Thread(  # noqa: TID251
                target=self._run, args=[connection], name="reverb-watch", daemon=True
            )
            thread.start()

    def close(self) -> None:
        """Returns at once: a question that is out ends by itself, and its thread with it."""
        self._stopped.set()

    def _run(self, connection: Connection) -> None:
        while not self._stopped.wait(self._period_s):
            connection.probe(self._silence_s)


def _settings_of_spec(table: TableSpec) -> dict[str, Any]:
    """What `_settings_of_info` reads from a table that was built from `table`."""
    limiter = table.limiter
    free = limiter.samples_per_insert == 0  # Reverb's MinSize then, a ratio with endless errors allowed
    return {
        "capacity": table.capacity_items,
        "priority exponent": table.priority_exponent,
        "samples per insert": 1.0 if free else limiter.samples_per_insert,
        "items before the first sample": table.min_items,
        "least error": -sys.float_info.max if free else limiter.min_error,
        "largest error": sys.float_info.max if free else limiter.max_error,
        "signature": _flat(item_signature(table)),
    }


def _settings_of_info(info: Any) -> dict[str, Any]:
    sampler, limiter = info.sampler_options, info.rate_limiter_info
    proportional = sampler.WhichOneof("distribution") == "prioritized"
    return {
        "capacity": info.max_size,
        "priority exponent": sampler.prioritized.priority_exponent if proportional else 0,
        "samples per insert": limiter.samples_per_insert,
        "items before the first sample": limiter.min_size_to_sample,
        "least error": limiter.min_diff,
        "largest error": limiter.max_diff,
        "signature": _flat(info.signature),
    }


def _flat(signature: Any) -> list[str]:
    return [f"{spec.name} {spec.dtype.name}{spec.shape.as_list()}" for spec in tf.nest.flatten(signature)]


def _bypass_proxy(address: str) -> None:
    """Keeps gRPC from reaching a replay server through the HTTP proxy that a machine may be set up with.

    Only the hosts of replay servers are added to what the variable holds.
    """
    host = address.rpartition(":")[0]
    environment = os.environ  # noqa: TID251, gRPC takes this setting from nowhere else
    hosts = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    if host not in hosts.split(","):
        environment["no_grpc_proxy"] = ",".join(filter(None, [hosts, host]))
