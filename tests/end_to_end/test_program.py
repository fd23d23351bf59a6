"""How every program ends."""

from __future__ import annotations

import pytest

from gorila_jax.types import ConfigError, GorilaError
from launchers.program import guarded


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a setting"), 2, "error: a setting\n"),
        (GorilaError("a fault"), 1, "error: a fault\n"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT\n"),
    ],
)
def test_what_is_no_fault_of_the_program_is_one_line_and_a_code(error, code, line, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        guarded(main)
    assert ended.value.code == code
    assert capsys.readouterr().err == line


def test_a_fault_of_the_program_shows_its_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guarded(main)
