"""Reverb servers and their tables."""

from __future__ import annotations

import pathlib
import shutil
import socket
import tempfile
import uuid
from collections.abc import Sequence

import reverb
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from gorila_jax.replay.reverb.connection import Connection
from gorila_jax.replay.reverb.daemon import call_within
from gorila_jax.replay.reverb.tables import TableName, check_servers, make_table
from gorila_jax.replay.table import TableSpec, check_table, read_settings
from gorila_jax.types import ConfigError, ReplayError

BACKEND = "reverb"
_OWN_ANSWER_TIMEOUT_S = 30.0


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
        tables = [make_table(table, TableName(run_id, incarnation, number)) for number in numbers]
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
        self.connection = Connection(self.address, run_id, table, numbers, _OWN_ANSWER_TIMEOUT_S)
        if self.connection.incarnation != incarnation:
            raise ReplayError(f"another replay server answers on port {self.port}")
        if restore_directory:
            self._check_restored(numbers, servers[index]["sizes"], restore_directory)

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def wait(self) -> None:
        """Serves until the process is interrupted."""
        self._server.wait()

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_restored(self, numbers: Sequence[int], sizes: list[list[int]], directory: str) -> None:
        """Raises ReplayError unless as many items came back as a table had around the time of saving."""
        for number, (least, most) in zip(numbers, sizes, strict=True):
            size = self.connection.info(number, _OWN_ANSWER_TIMEOUT_S).current_size
            if not least <= size <= most:
                self.stop()
                raise ReplayError(f"{size} items of table {number} came back from {directory}, not {least}")


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
