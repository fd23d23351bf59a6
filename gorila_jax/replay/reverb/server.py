"""Reverb servers and their tables."""

from __future__ import annotations

import pathlib
import shutil
import socket
import tempfile
import uuid
from typing import Any, NamedTuple

import reverb
import tensorflow as tf
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from gorila_jax.replay.reverb.daemon import call_within
from gorila_jax.replay.table import TableSpec, check_table, read_settings
from gorila_jax.types import ConfigError, ReplayError, Step

BACKEND = "reverb"


class TableName(NamedTuple):
    """A table's name says whose it is, so an insert that reaches another run's server fails there.

    The incarnation is new with every server that starts empty: inserts meant for a server that died do not
    enter the empty one that took its place. A restored server keeps its incarnation, for it has its items.
    """

    run_id: str
    incarnation: str
    number: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.incarnation}/{self.number}"

    @classmethod
    def parse(cls, name: str) -> TableName | None:
        """None when the name is no name of ours."""
        parts = name.rsplit("/", 2)
        if len(parts) != 3 or not parts[2].isdigit():
            return None
        return cls(parts[0], parts[1], int(parts[2]))


class ReplayServer:
    """A Reverb server in this process. It listens on all interfaces, without any authentication.

    Of `num_tables` tables, numbered from 0, it holds number `index` and every `num_servers`-th after it.
    """

    def __init__(
        self,
        table: TableSpec,
        num_tables: int,
        run_id: str,
        port: int = 0,
        *,
        index: int = 0,
        num_servers: int = 1,
        restore_directory: str = "",
        restore_timeout_s: float = 600.0,
    ):
        """Starts the server, with the items saved below `restore_directory` if that is given.

        Args:
          port: to listen on; 0: any free one.

        Raises:
          ConfigError: the tables cannot work, or there are none for this server.
          ReplayError: the port is taken, or the saved replay is damaged, differs or takes too long to load.
        """
        check_table(table, num_tables)
        check_servers(num_tables, num_servers)
        if not run_id:
            raise ConfigError("a replay server needs a run id, so that no other run's actors can feed it")
        numbers = range(index, num_tables, num_servers)
        incarnation = uuid.uuid4().hex[:12]
        fallback = None
        if restore_directory:
            saved = read_settings(pathlib.Path(restore_directory), BACKEND, table, num_tables)
            servers = saved["servers"]
            if len(servers) != num_servers:
                raise ReplayError(
                    f"the replay in {restore_directory} was saved from {len(servers)} servers, now there are "
                    f"{num_servers}: start as many"
                )
            # Reverb restores tables by name and refuses other names.
            run_id, incarnation = saved["run_id"], servers[index]["incarnation"]
            fallback = str((pathlib.Path(restore_directory) / f"server_{index}").absolute())
        self.run_id = run_id
        self.incarnation = incarnation
        self._scratch = tempfile.mkdtemp(prefix="gorila_replay_")
        self.port = _free_port(port)
        tables = [_make_table(table, TableName(run_id, incarnation, number)) for number in numbers]
        checkpointer = DefaultCheckpointer(self._scratch, fallback_checkpoint_path=fallback)
        try:
            self._server = call_within(
                restore_timeout_s, "reverb-start", lambda: reverb.Server(tables, self.port, checkpointer)
            )
        except TimeoutError as error:
            raise ReplayError(
                f"the replay saved in {restore_directory} was not loaded within {restore_timeout_s:g} s"
            ) from error
        except (RuntimeError, ValueError) as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise ReplayError(f"no replay server could be started on port {self.port}: {error}") from error
        if restore_directory:
            self._check_restored(tables, servers[index]["sizes"], restore_directory)

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def wait(self) -> None:
        """Serves until the process is interrupted."""
        self._server.wait()

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_restored(self, tables: list[Any], sizes: list[list[int]], directory: str) -> None:
        for table, (least, most) in zip(tables, sizes, strict=True):
            size = table.info.current_size
            if not least <= size <= most:
                self.stop()
                raise ReplayError(
                    f"{size} items came back into {table.name} from {directory}, but {least} were saved"
                )


def check_servers(num_tables: int, num_servers: int) -> None:
    """Raises ConfigError when a server would have no table."""
    if num_servers > num_tables:
        raise ConfigError(
            f"{num_servers} replay servers for {num_tables} table(s): several servers for one table are not "
            "supported yet, give one address per table at most"
        )


def item_signature(table: TableSpec) -> Step:
    """The `tf.TensorSpec`s [W, ...] of one item."""
    window = (table.window_steps,)
    return Step(*(tf.TensorSpec(window + field.shape, field.dtype) for field in table.signature))


def make_limiter(table: TableSpec) -> Any:
    limiter = table.limiter
    if limiter.samples_per_insert == 0:
        return reverb.rate_limiters.MinSize(limiter.min_items)
    return reverb.rate_limiters.SampleToInsertRatio(
        limiter.samples_per_insert, limiter.min_items, (limiter.min_error, limiter.max_error)
    )


def _make_table(table: TableSpec, name: TableName) -> Any:
    selectors = reverb.selectors
    return reverb.Table(
        str(name),
        sampler=selectors.Prioritized(table.priority_exponent) if table.proportional else selectors.Uniform(),
        remover=selectors.Fifo(),
        max_size=table.capacity_items,
        rate_limiter=make_limiter(table),
        signature=item_signature(table),
    )


def _free_port(port: int) -> int:
    """`port`, or a free one for 0. Raises ReplayError when it is taken.

    Reverb itself would share a taken port with the other server without a word, and clients would reach
    now the one, now the other.
    """
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # this machine has no IPv6
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ReplayError(f"port {port} is taken ({error}): another replay server runs there") from error
            port = probe.getsockname()[1]
    return port
