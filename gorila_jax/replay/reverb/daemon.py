"""One daemon thread that makes calls which Python cannot interrupt."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future  # noqa: TID251, see DaemonCaller
from typing import Any


class DaemonCaller:
    """Makes one call at a time, in the order of submission, in a thread that a process may leave behind.

    Reverb's reads and priority updates wait without end when a server dies, and nothing in Python can
    wake them. So they wait here, while the caller waits for the future as long as it likes. The threads of
    `concurrent.futures` will not do: the interpreter joins them when it exits.
    """

    def __init__(self, name: str):
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # noqa: TID251
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def close(self, timeout_s: float) -> None:
        """Ends the thread after what was submitted, or leaves it behind when that takes longer."""
        self._calls.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            try:
                future.set_result(call())
            except BaseException as error:  # handed to whoever asks for the result
                future.set_exception(error)
            # Not kept while waiting for the next call: a result may be a whole batch.
            del entry, future, call


def call_within(timeout_s: float, name: str, call: Callable[[], Any]) -> Any:
    """Makes one call in its own daemon thread. Raises TimeoutError when it takes longer."""
    caller = DaemonCaller(name)
    try:
        return caller.submit(call).result(timeout_s)
    finally:
        caller.close(0)
