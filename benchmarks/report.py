"""How every benchmark ends: a table for a person, then one line of JSON for a program.

The JSON object is the last line of stdout: `{"benchmark": name, "ratios": {...}, "figures": {...},
"versions": {...}}`. A ratio is a share of something that the same run measured, so it can be compared between
machines; figures cannot. `--json=PATH` writes the same line to a file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from gorila_jax.runtime.workdir import versions
from gorila_jax.types import ConfigError, GorilaError

JSON = flags.DEFINE_string("json", None, "file that gets the JSON object of the last line too")

_WIDTH = 110  # of the table where stdout is no terminal


def run(main: Callable[[], None]) -> None:
    """Parses the flags and calls `main`. Exit codes: 0 done, 1 a fault, 2 a setting that cannot work."""

    def guarded(argv: Sequence[str]) -> None:
        try:
            if argv[1:]:
                raise ConfigError(f"{argv[1]!r} is no flag; flags are written --name=value")
            main()
        except GorilaError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2 if isinstance(error, ConfigError) else 1)

    logging.set_verbosity(logging.WARNING)
    app.run(guarded)


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def report(name: str, table: Table, ratios: Mapping[str, float], figures: Mapping[str, Any]) -> None:
    """Prints the table and, as the last line, the JSON object; writes it to `--json` where that is given.

    Args:
      name: of the benchmark.
      table: what a person reads.
      ratios: finite numbers.
      figures: JSON values, finite.

    Raises:
      GorilaError: a ratio is not finite, or the file cannot be written.
    """
    line = json_line(name, ratios, figures)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH).print(table)
    print(line, flush=True)
    if JSON.value:
        try:
            with open(JSON.value, "w", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise GorilaError(f"cannot write --json={JSON.value}: {error}") from error


def json_line(name: str, ratios: Mapping[str, float], figures: Mapping[str, Any]) -> str:
    """The object as one line. Raises GorilaError when a ratio is not finite."""
    broken = [ratio for ratio, value in ratios.items() if not math.isfinite(value)]
    if broken:
        raise GorilaError(f"{name}: not finite: {', '.join(broken)}")
    record = {"benchmark": name, "ratios": dict(ratios), "figures": dict(figures), "versions": versions()}
    return json.dumps(record, allow_nan=False)
