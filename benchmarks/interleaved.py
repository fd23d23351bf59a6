"""Measures arms in turns, in one process, and compares them with each other.

A machine that slows down for a while then slows all arms, not the one that was unlucky, and a share of one in
another holds on other machines too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.report import make_table, report

ROUNDS = flags.DEFINE_integer("rounds", 5, "rounds; in each of them every part is measured once", 1)
SECONDS = flags.DEFINE_float("seconds", 3.0, "seconds per part and round", 0.01)

COLUMNS = ("figure", "median", "lowest", "highest", "share of a bound")
"""Of a table whose rows are `table_rows`."""

Arm = Callable[[float], dict[str, float]]
"""Measures for so many seconds; figures by name. Calls of 0 seconds warm it up."""

Rounds = Mapping[str, Sequence[float]]
"""Every figure, once per round."""


class Ratio(NamedTuple):
    figure: str
    bound: str  # another figure
    phrase: str  # what it is a share of


def measure_in_turns(arms: Sequence[Arm], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Every figure once per round. Every other round goes backwards: no arm always follows the same."""
    for _ in range(2):  # what a first call returns may be of a type that the second one compiles anew for
        for arm in arms:
            arm(0.0)
    figures: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for arm in arms if number % 2 == 0 else reversed(arms):
            for name, value in arm(seconds).items():
                figures[name].append(value)
    return dict(figures)


class Speed(NamedTuple):
    per_second: float
    processor_s: float  # for one, by all threads of this process: what hardly changes when others compute too


def per_second(work: Callable[[], int], seconds: float, settle: Callable[[], object] = lambda: None) -> float:
    """Calls `work` for so long, at least once, and adds up what it says; `settle` waits until it is done."""
    return measure_speed(work, seconds, settle).per_second


def measure_speed(
    work: Callable[[], int],
    seconds: float,
    settle: Callable[[], object] = lambda: None,
    processor_clock: Callable[[], float] = time.process_time,
) -> Speed:
    """As `per_second`, and how much processor time it took by `processor_clock`."""
    start, processor_start, done = time.perf_counter(), processor_clock(), 0
    while True:
        done += work()
        if time.perf_counter() - start >= seconds:
            break
    settle()
    processor_s = processor_clock() - processor_start
    return Speed(done / (time.perf_counter() - start), processor_s / done)


def median_ratio(rounds: Rounds, ratio: Ratio) -> float:
    """Taken within each round first: the machine changes less within a round than over the run."""
    return statistics.median(a / b for a, b in zip(rounds[ratio.figure], rounds[ratio.bound], strict=True))


def median_ratios(rounds: Rounds, wanted: Mapping[str, Ratio]) -> dict[str, float]:
    return {name: median_ratio(rounds, ratio) for name, ratio in wanted.items()}


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def table_rows(rounds: Rounds, ratios: Mapping[str, float], taken: Mapping[str, Ratio]) -> list[list[str]]:
    """A row per figure: see `COLUMNS`."""
    rows = []
    for figure, values in rounds.items():
        numbers = [f"{value:,.4g}" if value < 100 else f"{value:,.0f}" for value in summary(values).values()]
        shares = [
            f"{ratios[name]:.1%} of {ratio.phrase}" for name, ratio in taken.items() if ratio.figure == figure
        ]
        rows.append([figure.replace("_", " "), *numbers, "\n".join(shares)])
    return rows


def report_rounds(
    name: str,
    title: str,
    rounds: Rounds,
    ratios: Mapping[str, float],
    taken: Mapping[str, Ratio],
    settings: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> None:
    """How a benchmark ends whose table has a row per figure.

    Args:
      name, title: of the benchmark and of its table; how it was measured is added to `title`.
      taken: those of `ratios` that stand beside the figures.
      settings: what has to be equal for two sets of figures to be comparable, but for rounds and seconds.
      more: figures that are in no round.
    """
    figures = {figure: summary(values) for figure, values in rounds.items()} | dict(more or {})
    report_medians(name, title, COLUMNS, table_rows(rounds, ratios, taken), ratios, figures, settings)


def report_medians(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    ratios: Mapping[str, float],
    figures: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """As `report_rounds`, with a table and figures of its own."""
    measured = {"rounds": ROUNDS.value, "seconds": SECONDS.value}
    title = f"{title}; medians of {ROUNDS.value} x {SECONDS.value:g} s"
    figures = {**figures, "settings": {**settings, **measured}}
    report(name, make_table(title, columns, rows), ratios, figures)
