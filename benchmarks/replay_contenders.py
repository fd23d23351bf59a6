"""The replays that `benchmarks.replay` compares, each brought into the same form: see there."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gorila_jax.replay import make_replay, reverb_available, spread_sampler, step_signature
from gorila_jax.replay.table import TableSpec
from gorila_jax.rl.windows import Layout
from gorila_jax.types import EnvironmentSpec, Replay, ReplayError, Step

STREAMS = 16  # environments of one actor
TICKS = 64  # different rows of every stream; then they come again
SPEC = EnvironmentSpec("pictures", (84, 84), np.dtype(np.uint8), 6, 4, {})
TIMEOUT_S = 10.0
PEERS = ("cpprb", "flashbax")


class Workload(NamedTuple):
    """What every contender is asked to do."""

    table: TableSpec
    stride_steps: int  # rows of a stream from one item to the next
    ticks: Sequence[Step]  # a row of each stream, [STREAMS, ...]; after the last one they come again
    batch_sizes: Sequence[int]


class Contender(NamedTuple):
    """One replay, filled."""

    name: str
    insert: Callable[[], object]  # an item for each of the streams, and the rows that are new in it
    samplers: Mapping[int, Callable[[], object]]  # by batch size


def make_table_spec(layout: Layout, capacity_items: int) -> TableSpec:
    """Uniform, and free of a ratio of samples to inserts."""
    return TableSpec(
        signature=step_signature(SPEC),
        window_steps=layout.window_steps,
        capacity_items=capacity_items,
        min_items=1,
        samples_per_insert=0.0,
        error_buffer=0.0,
        priority_exponent=0.0,
    )


def make_ticks() -> list[Step]:
    """Rows of every stream [STREAMS, ...]. Pictures are about as simple as a game's: blocks of grey, a thing
    that moves."""
    random = np.random.default_rng(0)
    blocks = np.kron(random.integers(256, size=(12, 12), dtype=np.uint8), np.ones((7, 7), np.uint8))
    ticks: list[Step] = []
    for tick in range(TICKS):
        rows = []
        for stream in range(STREAMS):
            picture = np.roll(blocks, 5 * stream, axis=1)
            picture[tick : tick + 12, 60:72] = random.integers(256, size=(12, 12), dtype=np.uint8)
            action = np.int32(random.integers(6))
            rows.append(Step(picture, action, np.float32(0), np.float32(0.99), np.True_))
        ticks.append(Step(*map(np.stack, zip(*rows, strict=True))))
    return ticks


def make_contenders(work: Workload, stack: contextlib.ExitStack) -> list[Contender]:
    """Those that are installed."""
    contenders = reverb_contenders(work, stack) if reverb_available() else []
    contenders.append(our_contender("memory", make_replay("memory", work.table, 1), work, stack))
    if installed("cpprb") and work.stride_steps == 1:
        contenders.append(cpprb_contender(work))
    if installed("flashbax"):
        contenders.append(flashbax_contender(work))
    return contenders


def our_contender(name: str, replay: Replay, work: Workload, stack: contextlib.ExitStack) -> Contender:
    """Its tables share the streams."""
    stack.callback(replay.close)
    tables = range(replay.num_tables)
    share = STREAMS // len(tables)
    writers = [replay.writer(table, share) for table in tables]
    ticks = itertools.cycle(work.ticks)

    def append() -> None:
        rows = next(ticks)
        for first, writer in zip(range(0, STREAMS, share), writers, strict=True):
            writer.append_each(range(share), Step(*(field[first : first + share] for field in rows)))

    for _ in range(work.table.window_steps):
        append()

    def insert() -> None:
        for _ in range(work.stride_steps):
            append()
        for stream in range(STREAMS):
            writers[stream // share].insert(stream % share, 1.0)
        if not all(writer.ready(TIMEOUT_S) for writer in writers):
            raise ReplayError(f"{name}: items were not taken within {TIMEOUT_S:g} s")

    def sampler(batch_size: int) -> Callable[[], object]:
        port = spread_sampler(replay, tables, batch_size)

        def sample() -> None:
            if port.sample(TIMEOUT_S) is None:
                raise ReplayError(f"{name}: no batch came within {TIMEOUT_S:g} s")

        return sample

    return Contender(name, insert, {size: sampler(size) for size in work.batch_sizes})


def reverb_contenders(work: Workload, stack: contextlib.ExitStack) -> list[Contender]:
    # They load TensorFlow, which takes seconds and may not be there.
    from benchmarks.bare_reverb import BareClient, FiveColumns
    from gorila_jax.replay.reverb import ReverbReplay

    table = work.table
    replay = ReverbReplay(table, 1, run_id=uuid.uuid4().hex)
    contenders = [our_contender("reverb", replay, work, stack)]
    five_columns = FiveColumns(table)
    stack.callback(five_columns.close)
    contenders.append(by_hand("bare_reverb", BareClient(replay.addresses[0], table), work))
    contenders.append(by_hand("five_columns_reverb", five_columns, work))
    half = table._replace(capacity_items=table.capacity_items // 2)
    two_servers = ReverbReplay(half, 2, run_id=uuid.uuid4().hex, num_servers=2)
    contenders.append(our_contender("two_servers", two_servers, work, stack))
    return contenders


def by_hand(name: str, client: Any, work: Workload) -> Contender:
    """`client`: a BareClient or FiveColumns."""
    append, insert = client.inserter(STREAMS)
    ticks = itertools.cycle(work.ticks)
    for _ in range(work.table.window_steps):
        append(next(ticks))

    def insert_all() -> None:
        for _ in range(work.stride_steps):
            append(next(ticks))
        insert()

    return Contender(name, insert_all, {size: client.sampler(size) for size in work.batch_sizes})


def cpprb_contender(work: Workload) -> Contender:
    """One stream, since several streams would have to be buffers of their own."""
    import cpprb  # type: ignore[import-not-found, import-untyped]

    table, window = work.table, work.table.window_steps
    fields = {
        name: {"shape": (*field.shape, window), "dtype": field.dtype}
        for name, field in table.signature._asdict().items()
    }
    buffer = cpprb.ReplayBuffer(table.capacity_items, fields, stack_compress="observation")
    stream = [np.concatenate(column) for column in zip(*work.ticks, strict=True)]
    # One row after the other in memory, as cpprb keeps them: it takes that several times as fast.
    columns = {
        name: np.moveaxis(np.concatenate([rows, rows[: window - 1]]), 0, -1)
        for name, rows in zip(fields, stream, strict=True)
    }
    windows = itertools.cycle(
        {name: column[..., start : start + window] for name, column in columns.items()}
        for start in range(len(stream[0]))
    )

    def insert() -> None:
        for _ in range(STREAMS):
            buffer.add(**next(windows))

    samplers = {size: functools.partial(buffer.sample, size) for size in work.batch_sizes}
    return Contender("cpprb", insert, samplers)


def flashbax_contender(work: Workload) -> Contender:
    """Rows of all streams together; the buffer lies on jax's device."""
    import flashbax  # type: ignore[import-not-found, import-untyped]

    table, stride = work.table, work.stride_steps
    buffers = {
        size: flashbax.make_trajectory_buffer(
            add_batch_size=STREAMS,
            sample_batch_size=size,
            sample_sequence_length=table.window_steps,
            period=stride,
            min_length_time_axis=table.window_steps,
            max_length_time_axis=stride * table.capacity_items // STREAMS,
        )
        for size in work.batch_sizes
    }
    buffer = buffers[work.batch_sizes[0]]  # they differ in how they sample only
    ticks = itertools.cycle([jax.tree.map(lambda values: values[:, None], tick) for tick in work.ticks])
    first = jax.tree.map(lambda value: value[0, 0], next(ticks))
    add = jax.jit(buffer.add, donate_argnums=0)
    state = buffer.init(first)
    keys = itertools.cycle(jax.random.split(jax.random.PRNGKey(0), 256))

    def insert() -> None:
        nonlocal state
        for _ in range(stride):
            state = add(state, next(ticks))
        jax.block_until_ready(state)

    def sampler(size: int) -> Callable[[], object]:
        sample = jax.jit(buffers[size].sample)
        return lambda: jax.block_until_ready(sample(state, next(keys)))

    return Contender("flashbax", insert, {size: sampler(size) for size in work.batch_sizes})


def fill(contender: Contender, table: TableSpec) -> None:
    for _ in range(math.ceil(table.capacity_items / STREAMS)):
        contender.insert()


def installed(peer: str) -> bool:
    return importlib.util.find_spec(peer) is not None
