"""How much of a bare Reverb client is left in our writer and sampler, and how does the in-process replay do?

    python -m benchmarks.replay
    python -m benchmarks.replay --items=sequences

Rows shaped as Atari's (84 x 84 bytes and four scalars). Items are transitions, of 7 rows (a stack of 4 and
n = 3), one for every row; or sequences of 38 rows, one for every 20, without recurrent states. Uniform tables
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
import importlib.metadata
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks import replay_contenders
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
from benchmarks.replay_contenders import PEERS, STREAMS, Contender, Workload
from benchmarks.report import run
from gorila_jax.replay.signature import row_bytes
from gorila_jax.rl.windows import Layout, transition_layout
from gorila_jax.types import ConfigError


class Kind(NamedTuple):
    """What the items are."""

    layout: Layout
    batch_sizes: list[int]
    capacity_items: int


KINDS = {
    "transitions": Kind(transition_layout(frame_stack=4, n_steps=3), [32, 128], 10_000),
    "sequences": Kind(  # as those of r2d2's small preset
        Layout(
            frame_stack=4, burn_in_steps=10, length_steps=20, stride_steps=20, n_steps=5, stores_state=False
        ),
        [4, 64],
        1_000,
    ),
}

ITEMS = flags.DEFINE_enum("items", "transitions", list(KINDS), "what is stored")
BATCH_SIZES = flags.DEFINE_list("batch_sizes", None, "items per batch; by default those of the kind of item")
CAPACITY = flags.DEFINE_integer(
    "capacity_items", None, "items of a full table; by default those of the kind", 500
)

PROCESSOR_US = "_processor_us"
"""Ends the name of what an item takes of all threads: what hardly changes when others compute too."""


def main() -> None:
    kind = KINDS[ITEMS.value]
    batch_sizes = kind.batch_sizes if BATCH_SIZES.value is None else whole_numbers(BATCH_SIZES)
    if replay_contenders.reverb_available() and any(size % 2 for size in batch_sizes):
        raise ConfigError(f"--batch_sizes={batch_sizes}: even numbers, for two servers to share")
    table = replay_contenders.make_table_spec(kind.layout, CAPACITY.value or kind.capacity_items)
    work = Workload(table, kind.layout.stride_steps, replay_contenders.make_ticks(), batch_sizes)
    with contextlib.ExitStack() as stack:
        contenders = replay_contenders.make_contenders(work, stack)
        for contender in contenders:
            replay_contenders.fill(contender, table)
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
    absent = [name for name in PEERS if not replay_contenders.installed(name)]
    if not replay_contenders.reverb_available():
        absent.insert(0, "reverb")
    lines += [[name, "not installed"] for name in absent]
    title = (
        f"Replay of {ITEMS.value}: rows of {row_bytes(table.signature):,} bytes, items of "
        f"{table.window_steps} rows, {STREAMS} streams, {table.capacity_items:,} items"
    )
    columns = (*COLUMNS[:-1], "MB/s", "µs each", COLUMNS[-1])
    ratios = {**worst_ratios(ratios), **ratios}
    report_medians("replay", title, columns, lines, ratios, figures, settings(work))


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
        "peers": {
            peer: importlib.metadata.version(peer) if replay_contenders.installed(peer) else None
            for peer in PEERS
        },
    }


if __name__ == "__main__":
    run(main)
