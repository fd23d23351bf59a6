"""A table that a run writes to for weeks: kills, full disks, resumes and other versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gorila_jax.runtime.csv_table import CsvTable, format_value, read_columns
from gorila_jax.types import GorilaError

COLUMNS = ("frames", "score", "word")


def _table(path: Path, resumed_frames: int | None = None, **more) -> CsvTable:
    return CsvTable(path, COLUMNS, resumed_frames=resumed_frames, **more)


def _read(path: Path, **more) -> list[tuple]:
    columns = read_columns(path, COLUMNS, text=("word",), **more)
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a file of four rows, two of them at the same frames."""
    path = tmp_path / "table.csv"
    table = _table(path)
    table.append([(10, 1.5, "a"), (20, 2.5, "b, c")])
    table.append([(20, 3.5, 'said "d"'), (30, 4.5, "")])
    table.close()
    return path


ROWS = [(10, 1.5, "a"), (20, 2.5, "b, c"), (20, 3.5, 'said "d"'), (30, 4.5, "")]


def test_rows_are_on_disk_at_once(tmp_path):
    table = _table(tmp_path / "t.csv")
    assert _read(tmp_path / "t.csv") == []
    table.append([])
    table.append([(1, None, "a")])
    assert (tmp_path / "t.csv").read_text() == "frames,score,word\n1,,a\n"
    table.append([(2, 2.0, "b"), (3, 3.0, "c")])
    assert [row[0] for row in _read(tmp_path / "t.csv")] == [1, 2, 3]
    table.replace_last((4, 4.0, "a longer one"))
    table.replace_last((5, 5.0, ""))
    assert [row[0] for row in _read(tmp_path / "t.csv")] == [1, 2, 5]
    assert (tmp_path / "t.csv").read_text().endswith("5,5,\n")
    table.close()
    table.close()


def test_reading_gives_numbers_and_words(path):
    assert _read(path) == ROWS
    columns = read_columns(path, COLUMNS, text=("word",))
    assert [column.dtype.kind for column in columns.values()] == ["f", "f", "U"]


@pytest.mark.parametrize(("frames", "left"), [(None, 0), (0, 0), (9, 0), (10, 1), (29, 3), (30, 4), (99, 4)])
def test_later_rows_are_cut(path, frames, left):
    table = _table(path, frames)
    assert _read(path) == ROWS[:left]
    assert table.resumed("frames") == (ROWS[left - 1][0] if left else None)
    table.append([(100, 5.5, "e")])
    table.close()
    assert _read(path) == [*ROWS[:left], (100, 5.5, "e")]


def test_a_resumed_table_can_replace_its_last_row(path):
    table = _table(path, 20)
    table.replace_last((20, 0.0, "x"))
    table.append([(21, 0.0, "y")])
    table.close()
    assert _read(path) == [*ROWS[:2], (20, 0.0, "x"), (21, 0.0, "y")]


@pytest.mark.parametrize(("most", "left"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_rows_at_the_very_frames_are_told_apart_by_their_number(path, most, left):
    _table(path, 20, max_rows=most).close()
    assert _read(path) == ROWS[:left]


@pytest.mark.parametrize("end", range(18, 60))
def test_wherever_a_kill_cuts_it_the_whole_rows_stay(path, end):
    """The header is never cut: it comes with the file."""
    data = path.read_bytes()
    path.write_bytes(data[:end])
    whole = data[:end].count(b"\n") - 1
    assert _read(path) == ROWS[:whole]
    table = _table(path, 99)
    table.append([(100, 5.5, "e")])
    table.close()
    assert _read(path) == [*ROWS[:whole], (100, 5.5, "e")]


def test_a_kill_between_the_halves_of_a_replacement_leaves_no_remains(path):
    data = path.read_bytes()
    start = data.index(b"20,3.5")
    new = b"20,9,z\n"
    path.write_bytes(data[:start] + new + data[start + len(new) :])  # not truncated yet
    assert _read(path)[:3] == [*ROWS[:2], (20, 9.0, "z")]
    _table(path, 20).close()
    assert _read(path) == [*ROWS[:2], (20, 9.0, "z")]


def test_an_empty_file_is_one_without_rows(tmp_path):
    (tmp_path / "t.csv").touch()
    assert _read(tmp_path / "t.csv") == []
    _table(tmp_path / "t.csv", 9).close()
    assert (tmp_path / "t.csv").read_text() == "frames,score,word\n"


def test_missing_columns_are_empty_and_written_from_now_on(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("score,frames\n1.5,10\n2.5,20\n")
    ((frames, score, word), _) = _read(path)
    assert (frames, score, word) == (10, 1.5, "")
    table = _table(path, 10)
    table.append([(11, 9.0, "z")])
    table.close()
    assert path.read_text() == "frames,score,word\n10,1.5,\n11,9,z\n"


@pytest.mark.parametrize("most", [None, 0])
@pytest.mark.parametrize("frames", [None, 99])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("frames,new,newer\n10,1,2\n", "does not know: new, newer"),
        ("score,word\n1,a\n", "misses: frames"),
    ],
)
def test_other_columns_are_refused_and_left(tmp_path, text, says, frames, most):
    path = tmp_path / "t.csv"
    path.write_text(text)
    for use in (lambda: _table(path, frames, max_rows=most), lambda: _read(path)):
        with pytest.raises(GorilaError, match=rf"t\.csv has other columns.*{says}"):
            use()
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["frames,score,word\nten,1,a\n", "frames,score,word\n10,one,a\n"])
def test_a_field_that_is_no_number_is_named(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(GorilaError, match=r"t\.csv is damaged: (frames is 'ten'|score is 'one')"):
        _read(path)


def test_a_damaged_file_is_refused_and_left(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("frames,score,word\nten,1,a\n")
    with pytest.raises(GorilaError, match="damaged"):
        _table(path, 20)
    path.write_bytes(b"frames,score,word\n10,1,\xff\n")
    with pytest.raises(GorilaError, match=r"cannot read .*t\.csv"):
        _table(path, 20)
    assert list(tmp_path.iterdir()) == [path]


def test_no_file(tmp_path):
    with pytest.raises(GorilaError, match=r"cannot read .*t\.csv"):
        _read(tmp_path / "t.csv")


FULL_DISK = """
import resource, sys
from pathlib import Path
from gorila_jax.runtime.csv_table import CsvTable
from gorila_jax.types import GorilaError

path, at_the_start, size = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
table = None if at_the_start else CsvTable(path, ("frames", "score", "word"), resumed_frames=99)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # refuses what is more, as a full disk does
try:
    if at_the_start:
        CsvTable(path, ("frames", "score", "word"), resumed_frames=99)
    else:
        table.append((100 + i, 1.25, "e") for i in range(100))
except GorilaError as error:
    print(error)
"""


def _on_a_full_disk(path: Path, at_the_start: bool, size: int) -> str:
    """What is said. In a process of its own, whose largest file has `size` bytes."""
    command = [sys.executable, "-c", FULL_DISK, str(path), str(at_the_start), str(size)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


def test_a_full_disk_is_an_error_with_the_path_and_what_was_whole_stays(path):
    said = _on_a_full_disk(path, False, path.stat().st_size + 20)
    assert re.match(r"cannot write .*table\.csv: .*File too large", said)
    assert _read(path) == [*ROWS, (100, 1.25, "e")]  # and the half of another, left out


def test_a_full_disk_at_the_start_leaves_the_file_as_it_was(path):
    data = path.read_bytes()
    assert re.match(r"cannot write .*table\.csv: .*File too large", _on_a_full_disk(path, True, 30))
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a word", "a word"),
        (123_456_789_012, "123456789012"),
        (np.int64(7), "7"),
        (np.float32(0.4), "0.4"),
        (1.0 / 3, "0.3333333"),
        (1234567.891, "1234567.891"),
        (1.8e9 + 0.125, "1800000000.125"),
        (-21.0, "-21"),
        (float("nan"), "nan"),
    ],
)
def test_values(value, text):
    assert format_value(value) == text
