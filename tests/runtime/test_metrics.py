"""Rows of metrics: what is written is read back, and no frame count comes twice."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from gorila_jax.runtime import metrics
from gorila_jax.runtime.metrics import COLUMNS, MetricsWriter, read_metrics
from gorila_jax.types import GorilaError


def _row(frames: int, **more: Any) -> dict[str, Any]:
    return {"frames": frames, "steps": frames // 4, "wall_seconds": frames / 100, **more}


def _events(directory: Path) -> list[Event]:
    """All events below `directory`, file by file."""
    events = []
    for path in sorted((directory / "tensorboard").iterdir(), key=lambda path: path.name[-4:]):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            assert int.from_bytes(data[at + 8 : at + 12], "little") == masked_crc32c(data[at : at + 8])
            events.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 16 + length
    return events


def _scalars(directory: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value)
        for event in _events(directory)
        if event.WhichOneof("what") == "summary"
        for value in event.summary.value
    ]


class TestColumns:
    def test_steps_and_frames_are_both_there_and_the_game_score_has_a_name_of_its_own(self) -> None:
        assert {"steps", "frames", "episode_return_mean", "episode_training_reward_mean"} <= set(COLUMNS)
        assert "game score" in COLUMNS["episode_return_mean"].description
        assert "no game score" in COLUMNS["episode_training_reward_mean"].description

    def test_tags_are_grouped_by_role(self) -> None:
        assert metrics.tensorboard_tag("frames_per_second") == "actor/frames_per_second"
        assert {column.role for column in COLUMNS.values()} == {
            "run", "actor", "replay", "learner", "parameter_server",
        }  # fmt: skip


class TestWrite:
    def test_a_row_is_on_disk_at_once_and_read_back(self, tmp_path: Path) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(
                _row(4000, time=1.8e9 + 0.125, loss=np.float32(0.25), updates=np.int64(7), bottleneck="a, b")
            )
            columns = read_metrics(tmp_path)
            assert list(columns) == list(COLUMNS)
            assert columns["frames"].tolist() == [4000]
            assert columns["steps"].tolist() == [1000]
            assert columns["time"].tolist() == [1.8e9 + 0.125]
            assert columns["loss"].tolist() == [0.25]
            assert columns["updates"].tolist() == [7]
            assert columns["bottleneck"].tolist() == ["a, b"]
            assert math.isnan(columns["episode_return_mean"][0])
            writer.write(_row(4004))
            assert read_metrics(tmp_path / "metrics.csv")["frames"].tolist() == [4000, 4004]

    def test_large_counts_stay_exact(self, tmp_path: Path) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(_row(123_456_789_012, episode_return_mean=1234567.891))
        assert read_metrics(tmp_path)["frames"][0] == 123_456_789_012
        assert read_metrics(tmp_path)["episode_return_mean"][0] == 1234567.891

    def test_any_csv_reader_sees_the_header(self, tmp_path: Path) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(_row(4))
        with open(tmp_path / "metrics.csv", newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        assert list(table[0]) == list(COLUMNS)
        assert table[0]["frames"] == "4"
        assert table[0]["loss"] == ""
        writer.close()  # once more does no harm

    def test_frames_that_stand_still_replace_the_row(self, tmp_path: Path) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(_row(4))
            writer.write(_row(8, bottleneck="a long word", loss=1.0))
            writer.write(_row(8, loss=2.0))
            assert read_metrics(tmp_path)["loss"][1] == 2.0
            assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3  # nothing of the longer row
            writer.write(_row(8, bottleneck="an even longer word", loss=3.0))
            writer.write(_row(12, loss=4.0))
        columns = read_metrics(tmp_path)
        assert columns["frames"].tolist() == [4, 8, 12]
        assert columns["loss"][1:].tolist() == [3.0, 4.0]
        assert columns["bottleneck"].tolist() == ["", "an even longer word", ""]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"frames": 3}, "only grow"),
            ({}, "only grow"),
            ({"frames": 9, "los": 1.0}, r"no such columns: \['los'\]"),
        ],
    )
    def test_faulty_rows(self, tmp_path: Path, row: dict, message: str) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(_row(4))
            with pytest.raises(ValueError, match=message):
                writer.write(row)
        assert read_metrics(tmp_path)["frames"].tolist() == [4]

    def test_a_disk_that_refuses_is_an_error_with_the_path(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.csv").mkdir()
        with pytest.raises(GorilaError, match=r"metrics\.csv"):
            MetricsWriter(tmp_path)

    def test_a_full_disk_is_an_error_with_the_path_and_no_other_one_on_the_way_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        def write() -> None:
            with MetricsWriter(tmp_path) as writer:
                for name in ("flush", "close"):
                    monkeypatch.setattr(EventsWriter, name, full)
                writer.write(_row(4))

        with pytest.raises(GorilaError, match=r"cannot write TensorBoard events below .*No space") as caught:
            write()
        assert "in write" in str(caught.traceback[-1])


class TestResume:
    def _first_start(self, directory: Path) -> None:
        with MetricsWriter(directory) as writer:
            for frames in (100, 200, 300, 400):
                writer.write(_row(frames, loss=1.0))

    def test_rows_beyond_the_checkpoint_are_cut_and_time_adds_up(self, tmp_path: Path) -> None:
        self._first_start(tmp_path)
        with MetricsWriter(tmp_path, resumed_frames=250) as writer:
            assert read_metrics(tmp_path)["frames"].tolist() == [100, 200]
            written = writer.write(_row(260, wall_seconds=0.5, loss=2.0))
            assert written["wall_seconds"] == 2.5
            writer.write(_row(300, wall_seconds=0.75, loss=2.0))
        columns = read_metrics(tmp_path)
        assert columns["frames"].tolist() == [100, 200, 260, 300]
        assert columns["wall_seconds"].tolist() == [1, 2, 2.5, 2.75]
        assert columns["loss"].tolist() == [1, 1, 2, 2]

    def test_a_row_at_the_frames_of_the_checkpoint_stays_and_is_not_repeated(self, tmp_path: Path) -> None:
        self._first_start(tmp_path)
        with MetricsWriter(tmp_path, resumed_frames=200) as writer:
            writer.write(_row(200, loss=5.0))
            writer.write(_row(201, loss=6.0))
        columns = read_metrics(tmp_path)
        assert columns["frames"].tolist() == [100, 200, 201]
        assert columns["loss"].tolist() == [1, 5, 6]

    @pytest.mark.parametrize("resumed_frames", [None, 0])
    def test_without_a_checkpoint_it_begins_anew(self, tmp_path: Path, resumed_frames: int | None) -> None:
        self._first_start(tmp_path)
        with MetricsWriter(tmp_path, resumed_frames) as writer:
            assert writer.write(_row(0, wall_seconds=1.0))["wall_seconds"] == 1.0
        assert read_metrics(tmp_path)["frames"].tolist() == [0]

    def test_a_row_torn_by_a_kill_is_dropped(self, tmp_path: Path) -> None:
        self._first_start(tmp_path)
        path = tmp_path / "metrics.csv"
        path.write_bytes(path.read_bytes()[:-9])
        assert read_metrics(tmp_path)["frames"].tolist() == [100, 200, 300]
        with MetricsWriter(tmp_path, resumed_frames=400) as writer:
            writer.write(_row(500))
        assert read_metrics(tmp_path)["frames"].tolist() == [100, 200, 300, 500]

    def test_columns_that_are_not_known_are_refused_and_left(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.csv"
        path.write_text("frames,score\n1,2\n")
        for read in (lambda: MetricsWriter(tmp_path, resumed_frames=1), lambda: read_metrics(tmp_path)):
            with pytest.raises(GorilaError, match=r"metrics\.csv has other columns.*does not know: score"):
                read()
        assert path.read_text() == "frames,score\n1,2\n"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_of_an_older_version_is_read_and_resumed(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.csv"
        header = "time,wall_seconds,frames,episode_return_mean"
        path.write_text(f"{header}\n1.5,10,100,-21\n2.5,20,200,-20\n3.5,30,300,-19\n")
        old = read_metrics(tmp_path)
        assert list(old) == list(COLUMNS)
        assert old["episode_return_mean"].tolist() == [-21, -20, -19]
        assert np.isnan(old["episode_return_least_exploring"]).all()
        assert old["bottleneck"].tolist() == ["", "", ""]
        with MetricsWriter(tmp_path, resumed_frames=250) as writer:
            row = writer.write(_row(300, wall_seconds=1.0, episode_return_least_exploring=3.0))
        assert row["wall_seconds"] == 21.0
        columns = read_metrics(tmp_path)
        assert columns["frames"].tolist() == [100, 200, 300]
        assert columns["time"][:2].tolist() == [1.5, 2.5]
        assert columns["episode_return_least_exploring"][-1] == 3.0

    def test_no_metrics(self, tmp_path: Path) -> None:
        with pytest.raises(GorilaError, match=r"cannot read .*metrics\.csv"):
            read_metrics(tmp_path)


class TestTensorBoard:
    def test_numbers_by_role_over_frames(self, tmp_path: Path) -> None:
        with MetricsWriter(tmp_path) as writer:
            writer.write(_row(40, time=1234.5, loss=0.5, bottleneck="learner"))
            on_disk = _scalars(tmp_path)  # before it is closed
        assert on_disk == [
            (40, "run/time", 1234.5),
            (40, "run/wall_seconds", pytest.approx(0.4)),
            (40, "run/frames", 40),
            (40, "run/steps", 10),
            (40, "learner/loss", 0.5),
        ]
        assert [event.wall_time for event in _events(tmp_path)][1:] == [1234.5]

    @pytest.mark.parametrize(("resumed_frames", "purged_from"), [(450, 301), (250, 201), (None, 0)])
    def test_a_resumed_run_purges_what_comes_again(
        self, tmp_path: Path, resumed_frames: int | None, purged_from: int
    ) -> None:
        with MetricsWriter(tmp_path) as writer:
            for frames in (200, 300):
                writer.write(_row(frames))
        with MetricsWriter(tmp_path, resumed_frames) as writer:
            writer.write(_row(500))
        steps = [(event.WhichOneof("what"), event.step) for event in _events(tmp_path)]
        assert steps == [
            ("file_version", 0),
            ("summary", 200),
            ("summary", 300),
            ("file_version", 0),
            ("session_log", purged_from),  # TensorBoard forgets everything from there on
            ("summary", 500),
        ]
