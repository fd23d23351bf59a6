"""What holds for all tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs that way and every child would inherit it: no test could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
