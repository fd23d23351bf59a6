"""Reverb as one would use it by hand: nothing checked, nothing counted, nobody watched."""

from __future__ import annotations

import os
from collections.abc import Callable

import reverb
import tensorflow as tf

from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.table import TableSpec
from gorila_jax.types import Step

TIMEOUT_MS = 10_000

Inserter = tuple[Callable[[Step], None], Callable[[], None]]


class BareClient:
    """Inserts into the only table of a running server and samples from it. Rows lie there as ours do, and one
    writer serves all streams: what our writer and sampler ask of Reverb, and nothing else."""

    def __init__(self, address: str, table: TableSpec):
        _bypass_proxy(address)
        self._address = address
        self._client = reverb.Client(address)
        (self._name,) = self._client.server_info()
        self._window = table.window_steps
        self._packing = Packing(table.signature)

    def inserter(self, num_streams: int) -> Inserter:
        """Functions: one adds a row to every stream, the other makes an item of each stream's last rows."""
        kept = (self._window + 1) * num_streams
        writer = self._client.trajectory_writer(kept, validate_items=False)
        writer.configure((0,), num_keep_alive_refs=kept, max_chunk_length=1)
        end = 0  # number of the next row; the rows of all streams are interleaved

        def append(steps: Step) -> None:
            nonlocal end
            for row in self._packing.pack(steps):
                writer.append((row,))
            end += num_streams

        def insert() -> None:
            for start in range(end - self._window * num_streams, end - (self._window - 1) * num_streams):
                item = (writer.history[0][list(range(start, end, num_streams))],)
                writer.create_item(self._name, 1.0, item)
            writer.flush(block_until_num_items=0, timeout_ms=TIMEOUT_MS)

        return append, insert

    def sampler(self, batch_size: int) -> Callable[[], Step]:
        """A function that returns the fields of the next batch."""
        dataset = reverb.TrajectoryDataset.from_table_signature(
            self._address, self._name, max_in_flight_samples_per_worker=batch_size, num_workers_per_iterator=1
        )
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False  # it would draw in the time of others
        batches = dataset.batch(batch_size).with_options(options).as_numpy_iterator()
        return lambda: self._packing.unpack(next(batches).data[0])


class FiveColumns:
    """A server of its own, with a column for every field, and everything else as Reverb's README shows it."""

    def __init__(self, table: TableSpec):
        self._window = table.window_steps
        self._fields = table.signature._asdict()
        signature = {
            name: tf.TensorSpec((table.window_steps, *field.shape), field.dtype, name)
            for name, field in self._fields.items()
        }
        self._server = reverb.Server(
            [
                reverb.Table(
                    "items",
                    sampler=reverb.selectors.Uniform(),
                    remover=reverb.selectors.Fifo(),
                    max_size=table.capacity_items,
                    rate_limiter=reverb.rate_limiters.MinSize(table.min_items),
                    signature=signature,
                )
            ]
        )
        self._address = f"localhost:{self._server.port}"
        _bypass_proxy(self._address)
        self._client = reverb.Client(self._address)

    def inserter(self, num_streams: int) -> Inserter:
        writers = [self._client.trajectory_writer(self._window) for _ in range(num_streams)]

        def append(steps: Step) -> None:
            for writer, *row in zip(writers, *steps, strict=True):
                writer.append(Step(*row)._asdict())

        def insert() -> None:
            for writer in writers:
                item = {name: writer.history[name][-self._window :] for name in self._fields}
                writer.create_item("items", 1.0, item)
            for writer in writers:
                writer.flush(timeout_ms=TIMEOUT_MS)

        return append, insert

    def sampler(self, batch_size: int) -> Callable[[], Step]:
        dataset = reverb.TrajectoryDataset.from_table_signature(
            self._address, "items", max_in_flight_samples_per_worker=batch_size
        )
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # it would draw in the time of others
        batches = dataset.batch(batch_size).with_options(options).as_numpy_iterator()
        return lambda: Step(**next(batches).data)

    def close(self) -> None:
        self._server.stop()


def _bypass_proxy(address: str) -> None:
    """gRPC would go through the proxy that a machine may be set up with."""
    name = "no_grpc_proxy"
    os.environ[name] = ",".join(filter(None, [os.environ.get(name), address.rpartition(":")[0]]))
