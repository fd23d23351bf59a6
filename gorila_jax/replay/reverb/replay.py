"""All tables of a run, on Reverb servers here or elsewhere."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Sequence

from gorila_jax.replay.reverb.connection import Connection, Watch
from gorila_jax.replay.reverb.daemon import call_within
from gorila_jax.replay.reverb.draws import Draws
from gorila_jax.replay.reverb.sampler import ReverbSampler
from gorila_jax.replay.reverb.server import BACKEND, ReplayServer
from gorila_jax.replay.reverb.tables import check_servers
from gorila_jax.replay.reverb.writer import ReverbWriter
from gorila_jax.replay.table import TableSpec, appears_whole, check_table, write_settings
from gorila_jax.types import ReplayError, TableStatus

_STATUS_TIMEOUT_S = 10.0


class ReverbReplay:
    """Implements `types.Replay`. Without addresses it starts its servers in this process.

    Table `t` lies on server `t % number of servers`. Servers in other processes are watched: once one was
    silent for too long, or came back empty, every call raises ReplayError saying so.
    """

    def __init__(
        self,
        table: TableSpec,
        num_tables: int,
        run_id: str,
        addresses: Sequence[str] = (),
        port: int = 0,
        num_servers: int = 1,
        *,
        connect_timeout_s: float = 30.0,
        silence_timeout_s: float = 30.0,
        watch_period_s: float = 1.0,
        save_timeout_s: float = 600.0,
    ):
        """Connects to the servers, or starts them.

        Args:
          addresses: host:port of servers that run already, one per table at most.
          port: of the first server started here, the others take the ones after it; 0: any free ones.
          num_servers: started here, one per table at most; without meaning beside addresses.
          connect_timeout_s: how long to wait for the first answer of each server.
          silence_timeout_s: a server that gives no answer for so long counts as dead.
          watch_period_s: between two questions to a server in another process.
          save_timeout_s: for writing or loading one server's items.

        Raises:
          ConfigError: the settings cannot work.
          ReplayError: a server does not answer, is another run's, or its port is taken.
        """
        check_table(table, num_tables)
        self.num_tables = num_tables
        self._table = table
        self._run_id = run_id
        self._connect_timeout_s = connect_timeout_s
        self._save_timeout_s = save_timeout_s
        self._clients: list[ReverbWriter | ReverbSampler] = []
        self._draws: list[list[Draws]] = [[] for _ in range(num_tables)]
        self._servers: list[ReplayServer] = []
        self._watch: Watch | None = None
        if addresses:
            check_servers(num_tables, len(addresses))
            self._connections = [
                Connection(
                    address, run_id, table, range(index, num_tables, len(addresses)), connect_timeout_s
                )
                for index, address in enumerate(addresses)
            ]
            self._watch = Watch(self._connections, watch_period_s, silence_timeout_s)
        else:
            self._start([port + index if port else 0 for index in range(num_servers)])

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of every server, as seen from this machine."""
        return tuple(connection.address for connection in self._connections)

    def writer(self, table: int, num_streams: int) -> ReverbWriter:
        writer = ReverbWriter(self._connection(table), self._table, table, num_streams)
        self._clients.append(writer)
        return writer

    def sampler(self, table: int, batch_size: int) -> ReverbSampler:
        sampler = ReverbSampler(self._connection(table), self._table, table, batch_size, self._draws[table])
        self._clients.append(sampler)
        return sampler

    def status(self, table: int) -> TableStatus:
        info = self._connection(table).info(table, _STATUS_TIMEOUT_S)
        limiter = self._table.limiter
        inserted = info.rate_limiter_info.insert_stats.completed
        sampled = info.rate_limiter_info.sample_stats.completed
        return TableStatus(
            size_items=info.current_size,
            capacity_items=info.max_size,
            min_items=self._table.min_items,
            inserted_items=inserted,
            sampled_items=sampled,
            can_insert=limiter.can_insert(info.current_size, inserted, sampled),
            can_sample=limiter.can_sample(1, info.current_size, inserted, sampled),
        )

    def save(self, directory: str) -> None:
        """Has every server write its items, and moves them below `directory`, which must not exist.

        A server writes on its own machine: one elsewhere cannot be saved from here.
        """
        with appears_whole(directory) as path:
            servers = []
            for index, connection in enumerate(self._connections):
                numbers = range(index, self.num_tables, len(self._connections))
                before = [self.status(number).size_items for number in numbers]
                self._save_server(connection, path / f"server_{index}")
                after = [self.status(number).size_items for number in numbers]
                sizes = list(zip(before, after, strict=True))
                servers.append({"incarnation": connection.incarnation, "sizes": sizes})
            write_settings(path, BACKEND, self._table, self.num_tables, run_id=self._run_id, servers=servers)

    def restore(self, directory: str) -> None:
        """Starts this process's servers anew with the saved items. No writer or sampler may exist yet."""
        if not self._servers:
            raise ReplayError(
                "servers in other processes restore their own items: start them with the saved replay"
            )
        if self._clients:
            raise ReplayError("the replay can only be restored before any writer or sampler exists")
        for server in self._servers:
            server.stop()
        self._start([server.port for server in self._servers], directory)

    def close(self) -> None:
        """Ends all writers and samplers, then the servers that are ours."""
        for client in self._clients:
            if isinstance(client, ReverbSampler):
                client.stop()  # all of them at once, so that they end together
        for client in self._clients:
            client.close()
        if self._watch is not None:
            self._watch.close()
        for server in self._servers:
            server.stop()

    def _start(self, ports: Sequence[int], restore_directory: str = "") -> None:
        """Starts a server on each of these ports, or none when one of them fails."""
        with contextlib.ExitStack() as undo:
            servers = []
            for index, port in enumerate(ports):
                server = ReplayServer(
                    self._table,
                    self.num_tables,
                    self._run_id,
                    port,
                    index=index,
                    num_servers=len(ports),
                    restore_directory=restore_directory,
                    restore_timeout_s=self._save_timeout_s,
                )
                undo.callback(server.stop)
                servers.append(server)
            undo.pop_all()
        self._servers = servers
        self._run_id = servers[0].run_id  # restored servers keep the saved one
        self._connections = [server.connection for server in servers]

    def _connection(self, table: int) -> Connection:
        return self._connections[table % len(self._connections)]

    def _save_server(self, connection: Connection, target: pathlib.Path) -> None:
        connection.check()
        try:
            written = call_within(self._save_timeout_s, "reverb-save", connection.client.checkpoint)
        except TimeoutError as error:
            connection.check()
            raise ReplayError(
                f"the replay server at {connection.address} did not write its items within "
                f"{self._save_timeout_s:g} s"
            ) from error
        except (RuntimeError, ValueError) as error:
            raise ReplayError(f"the replay server at {connection.address} failed: {error}") from error
        if not pathlib.Path(written).is_dir():
            raise ReplayError(f"{connection.address} wrote to {written} on its own machine, out of reach")
        shutil.move(written, target)
