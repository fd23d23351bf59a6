"""Reverb servers and their tables."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import pathlib
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import reverb
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.reverb.tables import TableName, check_servers, make_table
from gorila_jax.replay.table import TableSpec, check_table, read_settings
from gorila_jax.types import ConfigError, ReplayError

BACKEND = "reverb"
_OWN_ANSWER_TIMEOUT_S = 30.0
_LOG = logging.getLogger(__name__)


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

        Reverb loads saved items without letting any other Python code of the process run. So when that takes
        longer than `restore_timeout_s`, the process ends with a traceback: nothing less could end it.

        Args:
          port: to listen on; 0: any free one.

        Raises:
          ConfigError: the tables cannot work, or there are none for this server.
          ReplayError: the port is taken, or the saved replay is damaged or differs.
        """
        check_table(table, num_tables)
        check_servers(num_tables, num_servers, index)
        if not run_id:
            raise ConfigError("a replay server needs a run id, so that no other run's actors can feed it")
        numbers = range(index, num_tables, num_servers)
        origin = _Origin(run_id, uuid.uuid4().hex[:12], "", [])
        if restore_directory:
            origin = _saved_origin(restore_directory, table, num_tables, index, num_servers)
        self.run_id = origin.run_id
        self.incarnation = origin.incarnation
        self.port = _free_port(port)
        # Checkpoints are written here first. TMPDIR moves it to where there is room.
        self._scratch = tempfile.mkdtemp(prefix="gorila_replay_")
        names = [TableName(self.run_id, self.incarnation, number) for number in numbers]
        tables = [make_table(table, name) for name in names]
        checkpointer = DefaultCheckpointer(self._scratch, fallback_checkpoint_path=origin.checkpoint or None)
        try:
            with _time_limit(restore_timeout_s if origin.checkpoint else 0.0, restore_directory):
                self._server = reverb.Server(tables, self.port, checkpointer)
        except (RuntimeError, ValueError) as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise ReplayError(f"no replay server could be started on port {self.port}: {error}") from error
        try:
            self.connection = Connection(self.address, self.run_id, table, numbers, _OWN_ANSWER_TIMEOUT_S)
            if self.connection.incarnation != self.incarnation:
                raise ReplayError(f"another replay server answers on port {self.port}")
            self._check_sizes(numbers, origin.sizes, restore_directory)
        except ReplayError:
            self.stop()
            raise

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def wait(self) -> None:
        """Serves until the process is interrupted."""
        self._server.wait()

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_sizes(self, numbers: Sequence[int], sizes: Sequence[Sequence[int]], directory: str) -> None:
        """Raises ReplayError unless as many items came back as a table had around the time of saving."""
        for number, (least, most) in zip(numbers, sizes, strict=False):
            size = self.connection.info(number, _OWN_ANSWER_TIMEOUT_S).current_size
            if not least <= size <= most:
                raise ReplayError(f"{size} items of table {number} came back from {directory}, not {least}")


class _Origin(NamedTuple):
    """Whose items a server starts with."""

    run_id: str
    incarnation: str
    checkpoint: str  # a directory that Reverb wrote, or none
    sizes: Sequence[Sequence[int]]  # of each of its tables: items just before and just after it was written


def _saved_origin(directory: str, table: TableSpec, num_tables: int, index: int, num_servers: int) -> _Origin:
    saved = read_settings(pathlib.Path(directory), BACKEND, table, num_tables)
    servers = saved["servers"]
    if len(servers) != num_servers:
        raise ReplayError(
            f"the replay in {directory} was saved from {len(servers)} servers, now there are {num_servers}: "
            "start as many"
        )
    checkpoint = str((pathlib.Path(directory) / f"server_{index}").absolute())
    # Reverb brings tables back by name and refuses other names.
    return _Origin(saved["run_id"], servers[index]["incarnation"], checkpoint, servers[index]["sizes"])


@contextlib.contextmanager
def _time_limit(seconds: float, directory: str) -> Iterator[None]:
    """Ends the process, with the traceback of every thread, when the body takes longer; 0: never.

    The timer is `faulthandler`'s, the one that also runs while C++ code keeps every Python thread waiting.
    """
    if seconds == 0:
        yield
        return
    _LOG.warning("loading the replay saved in %s; the process ends if it takes over %g s", directory, seconds)
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


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
                raise ReplayError(f"port {port} is taken ({error}): does another run use it?") from error
            port = probe.getsockname()[1]
    return port
