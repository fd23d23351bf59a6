"""One daemon thread that makes calls which Python cannot interrupt."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future  # noqa: TID251, see DaemonCaller
from typing import Any

__all__ = ["CancelledError", "DaemonCaller", "Future", "call_within"]


class DaemonCaller:
    """Makes one call at a time, in the order of submission, in a thread that a process may leave behind.

    Reverb's reads and priority updates wait without end when a server dies, and nothing in Python can
    wake them. So they wait here, while the caller waits for the future as long as it likes. The threads of
    `concurrent.futures` will not do: the interpreter joins them when it exits. It starts with the first call,
    and so has the priority of whoever makes that.
    """

    def __init__(self, name: str):
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._futures: list[Future[Any]] = []  # submitted and not done
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # noqa: TID251
        self._started = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """After `stop` the future is cancelled: whoever waits for it gets CancelledError."""
        future: Future[Any] = Future()
        with self._lock:
            if self._stopped:
                future.cancel()
            else:
                if not self._started:
                    self._thread.start()
                    self._started = True
                self._futures.append(future)
                self._calls.put((future, call))
        return future

    def stop(self) -> None:
        """Cancels every future that is not done. The call that is being made goes on without a listener."""
        with self._lock:
            self._stopped = True
            for future in self._futures:
                future.cancel()
            self._calls.put(None)

    def close(self, timeout_s: float) -> None:
        """Stops, and waits so long for the thread to end. It is left behind when it does not."""
        self.stop()
        if self._started:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            try:
                if not future.cancelled():
                    self._settle(future, call())
            except BaseException as error:  # handed to whoever asks for the result
                self._settle(future, None, error)
            # Not kept while waiting for the next call: a result may be a whole batch.
            del entry, future, call

    def _settle(self, future: Future[Any], result: Any, error: BaseException | None = None) -> None:
        with self._lock:
            self._futures.remove(future)
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def call_within(timeout_s: float, name: str, call: Callable[[], Any]) -> Any:
    """Makes one call in its own daemon thread. Raises TimeoutError when it takes longer."""
    caller = DaemonCaller(name)
    try:
        return caller.submit(call).result(timeout_s)
    finally:
        caller.close(0)
