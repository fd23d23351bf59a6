"""How much of a bare Reverb client is left in our writer and sampler, and how does the in-process replay do?

    python -m benchmarks.replay

Rows shaped as Atari's (84 x 84 bytes and four scalars), items of 7 rows (a stack of 4 and n = 3), uniform
tables that are full, nobody else at work: inserts are measured without samples and samples without inserts.

- *reverb*: our writer and sampler, on a server in this process.
- *bare reverb*: the same server and table, rows laid out as ours are, by hand. The bound.
- *five columns reverb*: by hand too, with a column for every field and all else as Reverb's README has it.
- *memory*: our in-process replay.
- *cpprb*, *flashbax*: in-process buffers of others, where they are installed (requirements-peers.txt), which
  store every frame once too. They get for nothing what their user would make: cpprb the windows of its one
  stream, flashbax the rows of all streams in one array.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
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
from gorila_jax.replay import make_replay, reverb_available, step_signature
from gorila_jax.replay.signature import row_bytes
from gorila_jax.replay.table import TableSpec
from gorila_jax.rl.windows import transition_layout
from gorila_jax.types import EnvironmentSpec, Replay, ReplayError, Step

BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["32", "128"], "items per batch")
CAPACITY = flags.DEFINE_integer("capacity_items", 10_000, "items of a full table", 1_000)

FRAME_STACK, N_STEPS = 4, 3
STREAMS = 16  # environments of one actor
TICKS = 64  # different rows of every stream; then they come again
SPEC = EnvironmentSpec("pictures", (84, 84), np.dtype(np.uint8), 6, 4, {})
TIMEOUT_S = 10.0
PEERS = ("cpprb", "flashbax")
PROCESSOR_US = "_processor_us"
"""Ends the name of what an item takes of all threads: what hardly changes when others compute too."""


class Contender(NamedTuple):
    """One replay, filled."""

    name: str
    insert: Callable[[], object]  # a row and an item for each of the streams
    samplers: Mapping[int, Callable[[], object]]  # by batch size


def main() -> None:
    batch_sizes = whole_numbers(BATCH_SIZES)
    table = make_table_spec(CAPACITY.value)
    with contextlib.ExitStack() as stack:
        contenders = make_contenders(table, make_rows(), batch_sizes, stack)
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
            "megabytes_per_second": megabytes(table, figure, median),
            "processor_us": statistics.median(rounds[figure + PROCESSOR_US]),
        }
        figures[figure] = summary(values) | more
        lines.append([*line[:-1], *(f"{value:,.0f}" for value in more.values()), line[-1]])
    lines += [[name, "not installed"] for name in ("reverb", *PEERS) if name not in names]
    title = (
        f"Replay: rows of {row_bytes(table.signature):,} bytes, items of {table.window_steps} rows, "
        f"{STREAMS} streams, {table.capacity_items:,} items"
    )
    columns = (*COLUMNS[:-1], "MB/s", "µs each", COLUMNS[-1])
    ratios = {**worst_ratios(ratios), **ratios}
    report_medians("replay", title, columns, lines, ratios, figures, settings(table))


def make_table_spec(capacity_items: int) -> TableSpec:
    """Uniform, and free of a ratio of samples to inserts."""
    return TableSpec(
        signature=step_signature(SPEC),
        window_steps=transition_layout(FRAME_STACK, N_STEPS).window_steps,
        capacity_items=capacity_items,
        min_items=1,
        samples_per_insert=0.0,
        error_buffer=0.0,
        priority_exponent=0.0,
    )


def make_contenders(
    table: TableSpec, rows: list[list[Step]], batch_sizes: Sequence[int], stack: contextlib.ExitStack
) -> list[Contender]:
    """Those that are installed."""
    contenders = reverb_contenders(table, rows, batch_sizes, stack) if reverb_available() else []
    memory = make_replay("memory", table, 1)
    contenders.append(our_contender("memory", memory, table, rows, batch_sizes, stack))
    if installed("cpprb"):
        contenders.append(cpprb_contender(table, rows, batch_sizes))
    if installed("flashbax"):
        contenders.append(flashbax_contender(table, rows, batch_sizes))
    return contenders


def make_rows() -> list[list[Step]]:
    """[TICKS][STREAMS] rows. Pictures are about as simple as a game's: blocks of grey, a thing that moves."""
    random = np.random.default_rng(0)
    blocks = np.kron(random.integers(256, size=(12, 12), dtype=np.uint8), np.ones((7, 7), np.uint8))
    rows: list[list[Step]] = []
    for tick in range(TICKS):
        rows.append([])
        for stream in range(STREAMS):
            picture = np.roll(blocks, 5 * stream, axis=1)
            picture[tick : tick + 12, 60:72] = random.integers(256, size=(12, 12), dtype=np.uint8)
            rows[-1].append(
                Step(picture, np.int32(random.integers(6)), np.float32(0), np.float32(0.99), np.True_)
            )
    return rows


def our_contender(
    name: str,
    replay: Replay,
    table: TableSpec,
    rows: list[list[Step]],
    batch_sizes: Sequence[int],
    stack: contextlib.ExitStack,
) -> Contender:
    stack.callback(replay.close)
    writer = replay.writer(0, STREAMS)
    ticks, appended = itertools.cycle(rows), 0

    def insert() -> None:
        nonlocal appended
        appended += 1
        for stream, row in enumerate(next(ticks)):
            writer.append(stream, row)
            if appended >= table.window_steps:
                writer.insert(stream, 1.0)
        if not writer.ready(TIMEOUT_S):
            raise ReplayError(f"{name}: items were not taken within {TIMEOUT_S:g} s")

    def sampler(batch_size: int) -> Callable[[], object]:
        port = replay.sampler(0, batch_size)

        def sample() -> None:
            if port.sample(TIMEOUT_S) is None:
                raise ReplayError(f"{name}: no batch came within {TIMEOUT_S:g} s")

        return sample

    return Contender(name, insert, {size: sampler(size) for size in batch_sizes})


def reverb_contenders(
    table: TableSpec, rows: list[list[Step]], batch_sizes: Sequence[int], stack: contextlib.ExitStack
) -> list[Contender]:
    # They load TensorFlow, which takes seconds and may not be there.
    from benchmarks.bare_reverb import BareClient, FiveColumns
    from gorila_jax.replay.reverb import ReverbReplay

    replay = ReverbReplay(table, 1, run_id=uuid.uuid4().hex)
    contenders = [our_contender("reverb", replay, table, rows, batch_sizes, stack)]
    five_columns = FiveColumns(table)
    stack.callback(five_columns.close)
    contenders.append(by_hand("bare_reverb", BareClient(replay.addresses[0], table), rows, batch_sizes))
    contenders.append(by_hand("five_columns_reverb", five_columns, rows, batch_sizes))
    return contenders


def by_hand(name: str, client: Any, rows: list[list[Step]], batch_sizes: Sequence[int]) -> Contender:
    """`client`: a BareClient or FiveColumns."""
    insert, ticks = client.inserter(STREAMS), itertools.cycle(rows)
    return Contender(name, lambda: insert(next(ticks)), {size: client.sampler(size) for size in batch_sizes})


def cpprb_contender(table: TableSpec, rows: list[list[Step]], batch_sizes: Sequence[int]) -> Contender:
    """One stream, since several streams would have to be buffers of their own."""
    import cpprb  # type: ignore[import-not-found, import-untyped]

    window = table.window_steps
    fields = {
        name: {"shape": (*field.shape, window), "dtype": field.dtype}
        for name, field in table.signature._asdict().items()
    }
    buffer = cpprb.ReplayBuffer(table.capacity_items, fields, stack_compress="observation")
    stream = [row for tick in rows for row in tick]
    stream += stream[: window - 1]
    # One row after the other in memory, as cpprb keeps them: it takes that several times as fast.
    columns = {name: np.moveaxis(np.stack([getattr(row, name) for row in stream]), 0, -1) for name in fields}
    windows = itertools.cycle(
        {name: column[..., start : start + window] for name, column in columns.items()}
        for start in range(len(stream) - window + 1)
    )

    def insert() -> None:
        for _ in range(STREAMS):
            buffer.add(**next(windows))

    return Contender("cpprb", insert, {size: functools.partial(buffer.sample, size) for size in batch_sizes})


def flashbax_contender(table: TableSpec, rows: list[list[Step]], batch_sizes: Sequence[int]) -> Contender:
    """Rows of all streams together; the buffer lies on jax's device."""
    import flashbax  # type: ignore[import-not-found, import-untyped]

    buffers = {
        size: flashbax.make_trajectory_buffer(
            add_batch_size=STREAMS,
            sample_batch_size=size,
            sample_sequence_length=table.window_steps,
            period=1,
            min_length_time_axis=table.window_steps,
            max_length_time_axis=table.capacity_items // STREAMS,
        )
        for size in batch_sizes
    }
    buffer = buffers[batch_sizes[0]]  # they differ in how they sample only
    ticks = itertools.cycle([jax.tree.map(lambda *values: np.stack(values)[:, None], *tick) for tick in rows])
    first = jax.tree.map(lambda value: value[0, 0], next(ticks))
    add = jax.jit(buffer.add, donate_argnums=0)
    state = buffer.init(first)
    keys = itertools.cycle(jax.random.split(jax.random.PRNGKey(0), 256))

    def insert() -> None:
        nonlocal state
        state = add(state, next(ticks))
        jax.block_until_ready(state)

    def sampler(size: int) -> Callable[[], object]:
        sample = jax.jit(buffers[size].sample)
        return lambda: jax.block_until_ready(sample(state, next(keys)))

    return Contender("flashbax", insert, {size: sampler(size) for size in batch_sizes})


def fill(contender: Contender, table: TableSpec) -> None:
    for _ in range(table.window_steps + table.capacity_items // STREAMS):
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


def megabytes(table: TableSpec, figure: str, per_second: float) -> float:
    """MB/s, uncompressed: an insert brings one row, a sample all of its rows."""
    rows = 1 if figure.endswith("_inserts_per_second") else table.window_steps
    return per_second * rows * row_bytes(table.signature) / 1e6


def settings(table: TableSpec) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    return {
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
