"""A CSV file that grows while a run goes on, and outlives kills, full disks and changes of the program.

Of columns there is one rule. A file that lacks some of today's was written by an older version: it is read
and resumed, and what is missing stays empty. A file with columns that are not known here is refused and left.
"""

from __future__ import annotations

import array
import csv
import io
import itertools
import math
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from gorila_jax.types import GorilaError

FRAMES = "frames"  # the column that says how far the run was: it never falls from row to row
_TEMPORARY = ".tmp"

Value = float | int | str | None


class CsvTable:
    """Appends rows to a file, each on disk at once. Used by one thread.

    A resumed run takes up at the frames of its checkpoint: later rows are of a future that will now happen
    again. They are cut off, and what a kill cut short is left out, in one step.
    """

    def __init__(
        self,
        path: Path,
        columns: Collection[str],
        *,
        resumed_frames: int | None = None,
        max_rows: int | None = None,
    ) -> None:
        """Makes the file at `path`, or opens it again.

        Args:
          columns: their names, `FRAMES` among them: the header.
          resumed_frames: rows of more frames are cut off; None or 0 starts with no rows.
          max_rows: so many rows stay at most, the first ones; None: all that `resumed_frames` leaves.

        Raises:
          GorilaError: the file has columns that are not known, is damaged, or cannot be written.
        """
        self._path = path
        self._columns = tuple(columns)
        self._resumed: dict[str, str] = {}  # the last row that stayed
        line = _line(self._columns)
        old: Iterator[dict[str, str]] = iter(())
        if path.exists():
            _check_header(path, columns)
            old = itertools.islice(read_rows(path, columns), max_rows)
        limit = resumed_frames or -1
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            try:
                with open(temporary, "w", encoding="utf-8", newline="") as file:
                    file.write(line)
                    for row in old:
                        if _number(path, row, FRAMES) <= limit:
                            self._resumed, line = row, _line(row.values())
                            file.write(line)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._file = open(path, "r+b", buffering=0)
            self._end = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._refused(error) from error
        self._last_start = self._end - len(line.encode())  # of the last row

    def resumed(self, name: str) -> float | None:
        """A field of the last row that stayed; None where there is none. Raises GorilaError: no number."""
        value = _number(self._path, self._resumed, name) if self._resumed else math.nan
        return None if math.isnan(value) else value

    def append(self, rows: Iterable[Iterable[Value]]) -> None:
        """Adds rows of one value per column. Raises GorilaError when the disk refuses them."""
        lines = [_line(format_value(value) for value in row).encode() for row in rows]
        if lines:
            self._write(self._end, lines)

    def replace_last(self, row: Iterable[Value]) -> None:
        """Writes `row` in place of the last one. Raises GorilaError when the disk refuses it."""
        self._write(self._last_start, [_line(format_value(value) for value in row).encode()])

    def close(self) -> None:
        """Closes the file; harmless when repeated."""
        self._file.close()

    def _write(self, start: int, lines: list[bytes]) -> None:
        data = b"".join(lines)
        rest = memoryview(data)
        try:
            self._file.seek(start)
            while rest:  # unbuffered, so it may take less than all of it
                rest = rest[self._file.write(rest) :]
            self._file.truncate()
        except OSError as error:
            raise self._refused(error) from error
        self._end = start + len(data)
        self._last_start = self._end - len(lines[-1])

    def _refused(self, error: OSError) -> GorilaError:
        return GorilaError(f"cannot write {self._path}: {error}")


def read_rows(path: Path, columns: Collection[str]) -> Iterator[dict[str, str]]:
    """The whole rows of a file as text by column, empty where a column is missing; torn ones are left out.

    Raises:
      GorilaError: there is no file, or it has columns that are not in `columns`.
    """
    header = _check_header(path, columns)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for fields in itertools.islice(_whole_lines(file), 1, None):
                if len(fields) == len(header):
                    row = dict(zip(header, fields, strict=True))
                    yield {name: row.get(name, "") for name in columns}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GorilaError(f"cannot read {path}: {error}") from error


def read_columns(
    path: Path, columns: Collection[str], *, text: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """One array [rows] per column: str for those in `text`, else float64 with NaN where a field is empty.

    Raises:
      GorilaError: as `read_rows`, or a field is no number.
    """
    words: dict[str, list[str]] = {name: [] for name in text}
    numbers = {name: array.array("d") for name in columns if name not in words}
    for row in read_rows(path, columns):
        for name, column in numbers.items():
            column.append(_number(path, row, name))
        for name, strings in words.items():
            strings.append(row[name])
    return {
        name: np.array(words[name], dtype=str) if name in words else np.array(numbers[name])
        for name in columns
    }


def format_value(value: Value) -> str:
    """Counts in full, other numbers with seven digits and at least three decimals; empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    value = float(value)
    return f"{value:.3f}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.7g}"


def _check_header(path: Path, columns: Collection[str]) -> list[str]:
    """The names in the first line, none in an empty file. Raises GorilaError unless all are known."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            header = next(_whole_lines(file), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GorilaError(f"cannot read {path}: {error}") from error
    unknown = [name for name in header if name not in columns]
    if unknown or (header and FRAMES not in header):
        reason = f"does not know: {', '.join(unknown)}" if unknown else f"misses: {FRAMES}"
        raise GorilaError(
            f"{path} has other columns. Those that this version of the program {reason}. Use the version "
            "that wrote it, or move it away"
        )
    return header


def _whole_lines(file: Iterable[str]) -> Iterator[list[str]]:
    return csv.reader(line for line in file if line.endswith("\n"))


def _number(path: Path, row: dict[str, str], name: str) -> float:
    try:
        return float(row[name] or "nan")
    except ValueError as error:
        raise GorilaError(f"{path} is damaged: {name} is {row[name]!r}") from error


def _line(fields: Iterable[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(list(fields))
    return buffer.getvalue()
