"""What every program shares: how flags are parsed and how it ends.

Exit codes: 0 done, 1 a fault of the run, 2 a setting or a flag that cannot work, 130 after SIGINT, 143 after
SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from absl import app, flags, logging

from gorila_jax.types import ConfigError, GorilaError, ReplayError


def run(main: Callable[[], int]) -> None:
    """Parses the flags, calls `main` and ends the process with its exit code."""
    logging.set_verbosity(logging.WARNING)
    app.run(lambda argv: guarded(main), flags_parser=parse)


def parse(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)[1:]
    except flags.Error as error:
        _fail(f"{error}; --help lists the flags, --helpfull all settings")
    except SystemExit:  # absl has printed the help, and would call that an error
        sys.exit(0)
    if rest:
        _fail(f"{rest[0]!r} is no flag; flags are written --name=value")
    return argv[:1]


def guarded(main: Callable[[], int]) -> None:
    try:
        sys.exit(main())
    except ConfigError as error:
        _fail(str(error))
    except GorilaError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, ReplayError) or isinstance(error.__cause__, ReplayError):
            _end_at_once(1)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped by SIGINT", file=sys.stderr)
        sys.exit(130)


def _end_at_once(code: int) -> None:
    """Ends the process without the interpreter's own clean-up.

    Threads that wait for a replay server that has died cannot be ended, and to take things from under them
    aborts the process now and then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
