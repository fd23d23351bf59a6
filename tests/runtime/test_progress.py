"""What is shown: on a terminal, in a file, and before there is anything to show."""

import io
import math
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gorila_jax.runtime.episodes import GroupSummary
from gorila_jax.runtime.progress import (
    Progress,
    bottleneck,
    eta_seconds,
    exploration_table,
    format_duration,
    format_line,
    render,
)

ROW: dict[str, Any] = {
    "frames": 1_234_568,
    "steps": 308_642,
    "updates": 38_580,
    "episodes": 1_203,
    "wall_seconds": 3_723.0,
    "frames_per_second": 812.4,
    "updates_per_second": 25.31,
    "samples_per_insert": 8.0,
    "episode_return_mean": -20.314,
    "episode_epsilon_mean": 0.5234,
    "episode_return_least_exploring": -20.314,
    "epsilon_least_exploring": 0.5234,
    "loss": 0.01234,
    "staleness_mean": 0.4,
    "replay_fill_share": 0.613,
    "bottleneck": "actors (environment)",
}
LADDER = ROW | {"episode_return_least_exploring": 17.25, "epsilon_least_exploring": 0.001234}
NONE_OF_THE_LEAST = ROW | {"episode_return_least_exploring": None, "epsilon_least_exploring": None}
NOTHING_YET: dict[str, Any] = {
    "frames": 0,
    "episodes": 0,
    "episode_return_mean": None,
    "episode_epsilon_mean": math.nan,
    "loss": math.nan,
    "frames_per_second": 0.0,
}
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the terminal's cursor


def _console(terminal: bool, width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=25, color_system=None)


def _shown(row: dict[str, Any], width: int, title: str = "gorila on Pong-v5") -> list[str]:
    console = _console(terminal=False, width=width)
    console.print(render(row, 2_000_000, title))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


class TestFormatDuration:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 s"),
            (59.4, "59 s"),
            (59.6, "1 min 00 s"),
            (200, "3 min 20 s"),
            (3600, "1 h 00 min"),
            (7_384, "2 h 03 min"),
            (2 * 86_400 + 3 * 3600 + 59 * 60, "2 d 3 h"),
            (None, "–"),
            (math.nan, "–"),
            (math.inf, "–"),
            (-1, "–"),
        ],
    )
    def test_texts(self, seconds: float | None, text: str) -> None:
        assert format_duration(seconds) == text


class TestEta:
    def test_from_the_speed_now(self) -> None:
        assert eta_seconds({"frames": 400, "frames_per_second": 50.0}, 1000) == 12.0
        assert eta_seconds({"frames": 1001, "frames_per_second": 50.0}, 1000) == 0.0

    @pytest.mark.parametrize("speed", [None, 0.0, math.nan])
    def test_is_not_known_while_nothing_moves(self, speed: float | None) -> None:
        assert eta_seconds({"frames": 400, "frames_per_second": speed}, 1000) is None
        assert eta_seconds({}, 1000) is None


class TestLine:
    def test_explains_itself(self) -> None:
        assert format_line(ROW, 2_000_000) == (
            "1,234,568 / 2,000,000 frames (61.7 %), 812 frames/s, 25.3 updates/s, 8.00 samples/insert, "
            "return -20.3 (last 100 episodes, ε 0.523), loss 0.0123, staleness 0.400 updates, "
            "1,203 episodes, replay 61 % full, bottleneck: actors (environment), ETA 15 min 42 s"
        )

    def test_tells_those_that_explore_least_apart_where_they_do(self) -> None:
        of_all = "return -20.3 (last 100 episodes, ε 0.523), "
        assert f"{of_all}return of the least exploring 17.2 (ε 0.00123), loss" in format_line(LADDER, 1)
        assert f"{of_all}return of the least exploring –, loss" in format_line(NONE_OF_THE_LEAST, 1)

    @pytest.mark.parametrize(
        "row", [{}, NOTHING_YET, {name: math.nan for name in ROW if name != "bottleneck"}]
    )
    def test_before_anything_is_known(self, row: dict[str, Any]) -> None:
        line = format_line(row, 1000)
        assert "return –," in line
        assert "loss –," in line
        assert "ETA –" in line
        assert "nan" not in line.lower()
        assert "none" not in line.lower()

    @pytest.mark.parametrize(
        ("loss", "text"),
        [
            (0, "0.00"),
            (1234.5, "1,234"),
            (1e-7, "1.00e-07"),
            (-3e8, "-3.00e+08"),
            (9.996, "10.00"),
            (99.99, "100.0"),
        ],
    )
    def test_numbers(self, loss: float, text: str) -> None:
        assert f"loss {text}," in format_line({"loss": loss}, 1)


class TestRender:
    @pytest.mark.parametrize("width", [80, 120])
    def test_shows_everything_and_fits(self, width: int) -> None:
        lines = _shown(ROW, width)
        assert {len(line) for line in lines} == {width}
        text = "\n".join(lines)
        for part in (
            "gorila on Pong-v5",
            "1,234,568 / 2,000,000 frames  61.7 %",
            "812",
            "25.3",
            "1,203",
            "-20.3",
            "0.523",
            "0.0123",
            "0.400",
            "61 %",
            "8.00",
            "1 h 02 min",
            "15 min 42 s",
            "actors (environment)",
        ):
            assert part in text
        assert "…" not in text  # nothing was cut

    def test_every_bottleneck_is_explained_on_one_line(self) -> None:
        for actors, learners in ((None, None), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)):
            name, sentence = bottleneck(actors, learners, environment_share=1.0)
            console = _console(terminal=False)
            console.print(render({"bottleneck": name}, 1, "title", sentence))
            assert f"bottleneck  {name}: {sentence} " in console.file.getvalue()  # type: ignore[attr-defined]
            assert f"bottleneck: {name} ({sentence})," in format_line({"bottleneck": name}, 1, sentence)

    def test_has_the_same_height_from_the_start(self) -> None:
        rows: list[dict[str, Any]] = [{}, NOTHING_YET, ROW, LADDER, NONE_OF_THE_LEAST]
        assert len({len(_shown(row, 80)) for row in rows}) == 1

    def test_tells_those_that_explore_least_apart_where_they_do(self) -> None:
        text = "\n".join(_shown(LADDER, 80))
        for part in ("-20.3", "0.523", "return, least exploring", "17.2", "0.00123"):
            assert part in text
        assert "…" not in text
        assert "least exploring" in "\n".join(_shown(NONE_OF_THE_LEAST, 80))
        for row in (ROW, NOTHING_YET, {}):
            assert "least exploring" not in "\n".join(_shown(row, 80))

    @pytest.mark.parametrize("row", [{}, NOTHING_YET])
    def test_before_anything_is_known(self, row: dict[str, Any]) -> None:
        text = "\n".join(_shown(row, 80)).lower()
        assert "–" in text
        assert "nan" not in text
        assert "none" not in text

    def test_a_long_title_or_a_narrow_terminal_does_not_break_it(self) -> None:
        for width in (20, 40, 80):
            assert {len(line) for line in _shown(ROW, width, title="[red]a long title " * 20)} == {width}
        assert "[red]a long title" in _shown(ROW, 80, title="[red]a long title")[0]


class TestExplorationTable:
    def test_a_headline_and_a_line_per_group(self) -> None:
        groups = [
            GroupSummary(0.0006553600, 0.004096, 2, 100, 17.25),
            GroupSummary(0.01, 0.01, 1, 7, None),
            GroupSummary(0.16, 0.4, 1200, 100, -20.0),
        ]
        headline, *lines = exploration_table(groups)
        assert "25 episodes" in headline
        assert lines == [
            "            epsilon  environments  episodes  mean return",
            "0.000655 to 0.00410             2       100         17.2",
            "             0.0100             1         7            –",
            "     0.160 to 0.400         1,200       100        -20.0",
        ]


class TestProgress:
    def test_lines_where_there_is_no_terminal(self) -> None:
        console = _console(terminal=False, width=40)
        with Progress(2_000_000, "title", console) as progress:
            progress.update(ROW)
            progress.note("resumed at 1,000 frames [from a checkpoint]")
        assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
            format_line(ROW, 2_000_000),
            "resumed at 1,000 frames [from a checkpoint]",
        ]

    def test_a_log_gets_rows_and_notes_of_every_start(self, tmp_path: Path) -> None:
        for terminal in (True, False):
            with Progress(2_000_000, "title", _console(terminal), log=tmp_path / "log.txt") as progress:
                progress.note(f"a note {'that is long ' * 20}[1]")
                progress.update(ROW)
        lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
        assert lines == [f"a note {'that is long ' * 20}[1]", format_line(ROW, 2_000_000)] * 2

    def test_notes_stay_above_the_display(self) -> None:
        console = _console(terminal=True)
        with Progress(2_000_000, "title", console) as progress:
            progress.update(ROW)
            progress.note("a note")
        output = console.file.getvalue()  # type: ignore[attr-defined]
        assert output.index("a note") < output.rindex("1,234,568")

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_gives_the_terminal_back(self, error: type[BaseException]) -> None:
        console = _console(terminal=True)

        def run() -> None:
            with Progress(2_000_000, "title", console) as progress:
                progress.update(ROW)
                assert SHOW not in console.file.getvalue()  # type: ignore[attr-defined]
                raise error

        with pytest.raises(error):
            run()
        output = console.file.getvalue()  # type: ignore[attr-defined]
        assert output.rindex(SHOW) > output.rindex(HIDE)
        assert sys.stdout is not None
        assert not type(sys.stdout).__module__.startswith("rich")

    def test_ctrl_c_on_a_real_terminal(self) -> None:
        program = (
            "import signal\n"
            "from gorila_jax.runtime.progress import Progress\n"
            "with Progress(1000, 'title') as progress:\n"
            "    progress.update({'frames': 10})\n"
            "    signal.pause()\n"
        )
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "25"}
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=theirs, stderr=subprocess.DEVNULL, env=environment
        )
        os.close(theirs)
        output = b""
        try:
            while b"10 / 1,000 frames" not in output:
                assert select.select([ours], [], [], 60)[0], output
                output += os.read(ours, 4096)
            assert HIDE.encode() in output
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=60) != 0
            while select.select([ours], [], [], 0)[0]:
                try:
                    output += os.read(ours, 4096)
                except OSError:  # the other end is closed and everything was read
                    break
        finally:
            child.kill()
            child.wait()
            os.close(ours)
        assert output.rindex(SHOW.encode()) > output.rindex(HIDE.encode())


class TestBottleneck:
    @pytest.mark.parametrize(
        ("actors", "learners", "more", "name"),
        [
            (None, None, {}, "starting"),
            (0.0, 1.0, {"filling": True}, "filling replay"),
            (0.0, 0.9, {}, "actors"),
            (0.0, 0.9, {"environment_share": 0.7, "policy_share": 0.3}, "actors (environment)"),
            (0.1, 0.9, {"environment_share": 0.3, "policy_share": 0.6}, "actors (policy)"),
            (
                0.1,
                0.2,
                {"environment_share": 0.3, "policy_share": 0.1, "pull_share": 0.5},
                "actors (parameters)",
            ),
            (0.9, 0.0, {}, "learner"),
            (0.2, 0.19, {"environment_share": 0.7}, "learner"),
            (0.6, 0.7, {}, "replay"),
            (0.1, 0.1, {}, "none"),
        ],
    )
    def test_is_the_one_that_others_wait_for(
        self, actors: float | None, learners: float | None, more: dict[str, Any], name: str
    ) -> None:
        assert bottleneck(actors, learners, **more).name == name

    def test_says_how_much_is_waited(self) -> None:
        assert "learners wait for data 42%" in bottleneck(0.0, 0.42).sentence
        assert "actors wait for the learners 37%" in bottleneck(0.37, 0.0).sentence
