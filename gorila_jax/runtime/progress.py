"""What a person sees while a run goes on: a live table on a terminal, one line per period elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gorila_jax.runtime.episodes import GROUP_WINDOW, GroupSummary

Row = Mapping[str, Any]
"""Values by the column names of `runtime.metrics.COLUMNS`; None, NaN and what is missing show as a dash."""

DASH = "–"
_WAITS = 0.2  # share of time from which on somebody is said to wait


class Bottleneck(NamedTuple):
    name: str  # of the part that the others wait for: a column of the metrics
    sentence: str  # what is seen, for a person


def bottleneck(
    actor_wait_share: float | None,
    learner_wait_share: float | None,
    *,
    environment_share: float | None = None,
    policy_share: float | None = None,
    pull_share: float | None = None,
    filling: bool = False,
) -> Bottleneck:
    """Who waits for whom, and so which part would make the run faster if it were faster.

    Actors wait when replay's rate limiter holds them because the learners are behind; learners wait when
    there is nothing they may sample because the actors are behind. Less than 20 % of the time does not count.

    Args:
      actor_wait_share: share of the actors' time waiting until replay takes more, 0 to 1; None: unknown.
      learner_wait_share: share of the learners' time waiting for data.
      environment_share, policy_share, pull_share: how the actors spend the rest: in the environment, choosing
        actions, waiting for parameters. The largest one is named when the actors are the bottleneck.
      filling: replay has not reached the size at which learning starts.
    """
    if filling:
        return Bottleneck("filling replay", "replay is being filled before learning starts")
    if actor_wait_share is None or learner_wait_share is None:
        return Bottleneck("starting", "nothing has been measured yet")
    actors_wait, learners_wait = actor_wait_share >= _WAITS, learner_wait_share >= _WAITS
    if actors_wait and learners_wait:
        return Bottleneck(
            "replay",
            f"all wait for it: actors {actor_wait_share:.0%} of the time, learners {learner_wait_share:.0%}",
        )
    if learners_wait:
        parts = {"environment": environment_share, "policy": policy_share, "parameters": pull_share}
        known = {name: share for name, share in parts.items() if share is not None}
        where = f" ({max(known, key=lambda name: known[name])})" if known else ""
        return Bottleneck(f"actors{where}", f"learners wait for data {learner_wait_share:.0%} of their time")
    if actors_wait:
        return Bottleneck("learner", f"actors wait for the learners {actor_wait_share:.0%} of their time")
    return Bottleneck("none", "nobody waits, more or faster processors would help")


def format_duration(seconds: float | None) -> str:
    """Two units at most, such as `2 d 3 h`, `1 h 02 min`, `3 min 20 s`, `7 s`; a dash if not known."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return DASH
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def eta_seconds(row: Row, total_frames: int) -> float | None:
    """Seconds until `total_frames` at the speed of `row`; None while it stands still or is not known."""
    frames, speed = _known(row, "frames"), _known(row, "frames_per_second")
    if frames is None or not speed or speed < 0:
        return None
    return max(0.0, total_frames - frames) / speed


def format_line(row: Row, total_frames: int, explanation: str = "") -> str:
    """`row` as one line that needs no header."""
    return ", ".join(
        [
            f"{_count(row, 'frames')} / {total_frames:,} frames ({_done(row, total_frames)})",
            f"{_count(row, 'frames_per_second')} frames/s",
            f"{_number(row, 'updates_per_second')} updates/s",
            f"{_number(row, 'samples_per_insert')} samples/insert",
            f"return {_return(row)}",
            *([f"return of the least exploring {_least(row)}"] if _explores_differently(row) else []),
            f"loss {_number(row, 'loss')}",
            f"staleness {_number(row, 'staleness_mean')} updates",
            f"{_count(row, 'episodes')} episodes",
            f"replay {_percent(row, 'replay_fill_share')} full",
            f"bottleneck: {row.get('bottleneck') or DASH}{f' ({explanation})' if explanation else ''}",
            f"ETA {format_duration(eta_seconds(row, total_frames))}",
        ]
    )


def exploration_table(groups: Sequence[GroupSummary]) -> list[str]:
    """What environments that explore differently have scored: a headline, and one line per group."""
    rows = [("epsilon", "environments", "episodes", "mean return")]
    for group in groups:
        ends = (_digits(group.lowest_epsilon), _digits(group.highest_epsilon))
        epsilon = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        score = DASH if group.return_mean is None else _digits(group.return_mean)
        rows.append((epsilon, f"{group.environments:,}", f"{group.episodes:,}", score))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"returns by exploration, over the last {GROUP_WINDOW} episodes of each group of environments:",
        *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows),
    ]


class Progress:
    """Shows rows as they come. A context manager: leaving it gives the terminal back, whatever happened.

    On a terminal the display stays at the bottom and notes scroll by above it; elsewhere every row is a line.
    `update` and `note` may be called from any thread.

    Args:
      total_frames: where the run ends.
      title: of the display, such as the agent and the environment.
      console: where to show it; None: stdout.
      log: a file that every note and every row is appended to as a line; None: none.
    """

    def __init__(
        self,
        total_frames: int,
        title: str,
        console: Console | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        self._total_frames = total_frames
        self._title = title
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._log: Console | None = None
        if log is not None:
            self._log = Console(file=open(log, "a", encoding="utf-8"))

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._log is not None:
            self._log.file.close()
            self._log = None

    def stop(self) -> None:
        """Leaves the last picture as it is: what comes now, from libraries too, is printed below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, row: Row, explanation: str = "") -> None:
        """Shows the newest row, and why its bottleneck is one (`Bottleneck.sentence`)."""
        line = format_line(row, self._total_frames, explanation)
        if self._console.is_terminal:
            picture = render(row, self._total_frames, self._title, explanation)
            if self._live is None:  # not before there is something to see: starting libraries print much
                self._live = Live(picture, console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(picture, refresh=True)
        else:
            _print(self._console, line)
        if self._log is not None:
            _print(self._log, line)

    def note(self, text: str) -> None:
        """Prints a message that stays: above the live display, or as a line of its own."""
        _print(self._console, text)
        if self._log is not None:
            _print(self._log, text)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.file.flush()  # a file or a pipe would keep it back for minutes


def render(row: Row, total_frames: int, title: str, explanation: str = "") -> Panel:
    """`row` as the live display."""
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    bar.add_row(
        ProgressBar(total=max(1, total_frames), completed=_known(row, "frames") or 0),
        f"{_count(row, 'frames')} / {total_frames:,} frames  {_done(row, total_frames)}",
    )
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(2):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
    least = [("", ""), ("", "")]
    if _explores_differently(row):
        least = [
            ("return, least exploring", _number(row, "episode_return_least_exploring")),
            ("at exploration ε", _number(row, "epsilon_least_exploring")),
        ]
    for left, right in (
        (("frames/s", _count(row, "frames_per_second")), ("updates/s", _number(row, "updates_per_second"))),
        (("episodes", _count(row, "episodes")), ("updates", _count(row, "updates"))),
        (("return, last 100", _number(row, "episode_return_mean")), ("loss", _number(row, "loss"))),
        (
            ("at exploration ε", _epsilon(row)),
            ("staleness (updates)", _number(row, "staleness_mean")),
        ),
        (least[0], ("replay filled", _percent(row, "replay_fill_share"))),
        (least[1], ("samples per insert", _number(row, "samples_per_insert"))),
        (
            ("time so far", format_duration(_known(row, "wall_seconds"))),
            ("time to go", format_duration(eta_seconds(row, total_frames))),
        ),
    ):
        table.add_row(*left, *right)
    waits = Text.assemble(
        ("bottleneck  ", "dim"),
        str(row.get("bottleneck") or DASH),
        f": {explanation}" if explanation else "",
        overflow="ellipsis",
        no_wrap=True,
    )
    return Panel(Group(bar, table, waits), title=Text(title, overflow="ellipsis"), title_align="left")


def _known(row: Row, name: str) -> float | None:
    value = row.get(name)
    return None if value is None or not math.isfinite(value) else float(value)


def _count(row: Row, name: str) -> str:
    value = _known(row, name)
    return DASH if value is None else f"{value:,.0f}"


def _number(row: Row, name: str) -> str:
    value = _known(row, name)
    return DASH if value is None else _digits(value)


def _digits(value: float) -> str:
    """Three significant digits, never an exponent for what fits a line without one."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return f"{value:.2e}"


def _percent(row: Row, name: str) -> str:
    value = _known(row, name)
    return DASH if value is None else f"{100 * value:.0f} %"


def _done(row: Row, total_frames: int) -> str:
    frames = _known(row, "frames")
    return DASH if frames is None else f"{100 * frames / max(1, total_frames):.1f} %"


def _return(row: Row) -> str:
    mean = _number(row, "episode_return_mean")
    if mean == DASH:
        return mean if _epsilon(row) == DASH else f"{mean} (no game has ended, ε {_epsilon(row)})"
    return f"{mean} (last 100 episodes, ε {_epsilon(row)})"


def _explores_differently(row: Row) -> bool:
    """Whether the environments that explore least are not simply all of them."""
    epsilon = _known(row, "episode_epsilon_mean")
    return epsilon is not None and epsilon != _known(row, "epsilon_least_exploring")


def _least(row: Row) -> str:
    mean = _number(row, "episode_return_least_exploring")
    return mean if mean == DASH else f"{mean} (ε {_number(row, 'epsilon_least_exploring')})"


def _epsilon(row: Row) -> str:
    """That of the episodes in the mean, or the present one before there are any."""
    of_episodes = _number(row, "episode_epsilon_mean")
    return of_episodes if of_episodes != DASH else _number(row, "epsilon")
