"""How much of a bare Reverb client is left in our writer and sampler, and how does the in-process replay do?

    python -m benchmarks.replay
    python -m benchmarks.replay --items=sequences

Rows shaped as Atari's (84 x 84 bytes and four scalars). Items are transitions, of 7 rows (a stack of 4 and
n = 3), one for every row; or sequences of 38 rows, one for every 10, without recurrent states. Uniform tables
that are full, nobody else at work: inserts are measured without samples and samples without inserts.

- *reverb*: our writer and sampler, on a server in this process.
- *bare reverb*: the same server and table, rows laid out as ours are, by hand. The bound.
- *five columns reverb*: by hand too, with a column for every field and all else as Reverb's README has it.
- *two servers*: our writers and a sampler over two of them, in this process, that share the items.
- *memory*: our in-process replay.
- *cpprb*, *flashbax*: in-process buffers of others, where they are installed (requirements-peers.txt), which
  store every frame once too. They get for nothing what their user would make: cpprb the windows of its one
  stream, flashbax the rows of all streams in one array. Of cpprb transitions only: it shares frames among
  items that begin one row apart.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import math
import re
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from benchmarks.interleaved import (
    COLUMNS,
    ROUNDS,
    SECONDS,
    Arm,
    Ratio,
    measure_in_turns,
    measure_speed,
    median_ratios,
    report_medians,
    summary,
    table_rows,
)
from benchmarks.number_lists import whole_numbers
from benchmarks.report import run
from gorila_jax.replay import make_replay, reverb_available, spread_sampler, step_signature
from gorila_jax.replay.signature import row_bytes
from gorila_jax.replay.table import TableSpec
from gorila_jax.rl.windows import Layout, transition_layout
from gorila_jax.types import ConfigError, EnvironmentSpec, Replay, ReplayError, Step


class Kind(NamedTuple):
    """What the items are."""

    layout: Layout
    batch_sizes: list[int]
    capacity_items: int


KINDS = {
    "transitions": Kind(transition_layout(frame_stack=4, n_steps=3), [32, 128], 10_000),
    "sequences": Kind(  # as r2d2's, overlapping by half
        Layout(
            frame_stack=4, burn_in_steps=10, length_steps=20, stride_steps=10, n_steps=5, stores_state=False
        ),
        [8, 64],
        1_000,
    ),
}

ITEMS = flags.DEFINE_enum("items", "transitions", list(KINDS), "what is stored")
BATCH_SIZES = flags.DEFINE_list("batch_sizes", None, "items per batch; by default those of the kind of item")
CAPACITY = flags.DEFINE_integer(
    "capacity_items", None, "items of a full table; by default those of the kind", 500
)

STREAMS = 16  # environments of one actor
TICKS = 64  # different rows of every stream; then they come again
SPEC = EnvironmentSpec("pictures", (84, 84), np.dtype(np.uint8), 6, 4, {})
TIMEOUT_S = 10.0
PEERS = ("cpprb", "flashbax")
PROCESSOR_US = "_processor_us"
"""Ends the name of what an item takes of all threads: what hardly changes when others compute too."""


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


def main() -> None:
    kind = KINDS[ITEMS.value]
    batch_sizes = kind.batch_sizes if BATCH_SIZES.value is None else whole_numbers(BATCH_SIZES)
    if reverb_available() and any(size % 2 for size in batch_sizes):
        raise ConfigError(f"--batch_sizes={batch_sizes}: even numbers, for two servers to share")
    table = make_table_spec(kind.layout, CAPACITY.value or kind.capacity_items)
    work = Workload(table, kind.layout.stride_steps, make_ticks(), batch_sizes)
    with contextlib.ExitStack() as stack:
        contenders = make_contenders(work, stack)
        for contender in contenders:
            fill(contender, table)
        arms = [arm for contender in contenders for arm in make_arms(contender)]
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    names = [contender.name for contender in contenders]
    wanted = ratios_to_take(names, batch_sizes)
    ratios = median_ratios(rounds, wanted)
    speeds = {figure: values for figure, values in rounds.items() if not figure.endswith(PROCESSOR_US)}
    figures: dict[str, Any] = {}
    lines = []
    for (figure, values), line in zip(speeds.items(), table_rows(speeds, ratios, wanted), strict=True):
        median = statistics.median(values)
        more = {
            "megabytes_per_second": megabytes(work, figure, median),
            "processor_us": statistics.median(rounds[figure + PROCESSOR_US]),
        }
        figures[figure] = summary(values) | more
        lines.append([*line[:-1], *(f"{value:,.0f}" for value in more.values()), line[-1]])
    present = [name for name in PEERS if installed(name)] + ["reverb"] * reverb_available()
    lines += [[name, "not installed"] for name in ("reverb", *PEERS) if name not in present]
    title = (
        f"Replay of {ITEMS.value}: rows of {row_bytes(table.signature):,} bytes, items of "
        f"{table.window_steps} rows, {STREAMS} streams, {table.capacity_items:,} items"
    )
    columns = (*COLUMNS[:-1], "MB/s", "µs each", COLUMNS[-1])
    ratios = {**worst_ratios(ratios), **ratios}
    report_medians("replay", title, columns, lines, ratios, figures, settings(work))


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


def make_contenders(work: Workload, stack: contextlib.ExitStack) -> list[Contender]:
    """Those that are installed."""
    contenders = reverb_contenders(work, stack) if reverb_available() else []
    contenders.append(our_contender("memory", make_replay("memory", work.table, 1), work, stack))
    if installed("cpprb") and work.stride_steps == 1:
        contenders.append(cpprb_contender(work))
    if installed("flashbax"):
        contenders.append(flashbax_contender(work))
    return contenders


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


def make_arms(contender: Contender) -> list[Arm]:
    arms = [item_arm(inserts_figure(contender.name), contender.insert, STREAMS)]
    for size, sample in contender.samplers.items():
        arms.append(item_arm(samples_figure(contender.name, size), sample, size))
    return arms


def item_arm(figure: str, work: Callable[[], object], items: int) -> Arm:
    """`work` handles so many items."""

    def count_items() -> int:
        work()
        return items

    def measure(seconds: float) -> dict[str, float]:
        speed = measure_speed(count_items, seconds)
        return {figure: speed.per_second, figure + PROCESSOR_US: 1e6 * speed.processor_s}

    return measure


def inserts_figure(name: str) -> str:
    return f"{name}_inserts_per_second"


def samples_figure(name: str, batch_size: int) -> str:
    return f"{name}_samples_per_second_batch_{batch_size}"


class Rivals(NamedTuple):
    """Two contenders that are compared, and what the ratios are called."""

    name: str
    rival: str
    inserts: str  # ratio's name
    samples: str  # ratio's name, without its batch size
    phrase: str


RIVALS = (
    Rivals("reverb", "bare_reverb", "writer_of_bare_client", "sampler_of_bare_client", "bare"),
    Rivals(
        "reverb", "five_columns_reverb", "writer_of_five_columns", "sampler_of_five_columns", "five columns"
    ),
    Rivals(
        "two_servers", "reverb", "writer_of_two_servers_of_one", "sampler_of_two_servers_of_one", "one server"
    ),
    *(
        Rivals("memory", peer, f"memory_inserts_of_{peer}", f"memory_samples_of_{peer}", peer)
        for peer in PEERS
    ),
)


def ratios_to_take(names: Sequence[str], batch_sizes: Sequence[int]) -> dict[str, Ratio]:
    ratios = {}
    for rivals in RIVALS:
        if rivals.rival not in names:
            continue
        name, rival, phrase = rivals.name, rivals.rival, rivals.phrase
        ratios[rivals.inserts] = Ratio(inserts_figure(name), inserts_figure(rival), phrase)
        for size in batch_sizes:
            figures = samples_figure(name, size), samples_figure(rival, size)
            ratios[f"{rivals.samples}_batch_{size}"] = Ratio(*figures, phrase)
    in_processor_time = {
        f"{name}_in_processor_time": Ratio(ratio.bound + PROCESSOR_US, ratio.figure + PROCESSOR_US, "")
        for name, ratio in ratios.items()
    }
    return ratios | in_processor_time


def worst_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """`sampler_of_...`: of all batch sizes; `memory_of_...`: of inserts and all batch sizes."""
    worst = {}
    for rivals in RIVALS:
        sizes = [name for name in ratios if re.fullmatch(rf"{rivals.samples}_batch_\d+", name)]
        samples = [ratios[name] for name in sizes]
        if samples and rivals.rival in PEERS:
            worst[f"memory_of_{rivals.rival}"] = min(ratios[rivals.inserts], *samples)
        elif samples:
            worst[rivals.samples] = min(samples)
    return worst


def megabytes(work: Workload, figure: str, per_second: float) -> float:
    """MB/s, uncompressed: an insert brings the rows that are new in it, a sample all of its rows."""
    rows = work.stride_steps if figure.endswith("_inserts_per_second") else work.table.window_steps
    return per_second * rows * row_bytes(work.table.signature) / 1e6


def settings(work: Workload) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    table = work.table
    return {
        "items": ITEMS.value,
        "stride_steps": work.stride_steps,
        "row_bytes": row_bytes(table.signature),
        "window_steps": table.window_steps,
        "capacity_items": table.capacity_items,
        "streams": STREAMS,
        "peers": {peer: importlib.metadata.version(peer) if installed(peer) else None for peer in PEERS},
    }


def installed(peer: str) -> bool:
    return importlib.util.find_spec(peer) is not None


if __name__ == "__main__":
    run(main)
