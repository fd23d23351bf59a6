"""Which call of an environment may follow which: the same refusals, in the same words, for every kind."""

from __future__ import annotations

from gorila_jax.types import GorilaError


class CallOrder:
    """Follows an environment from its first reset to its close. Each method is called before that call does
    anything, and raises GorilaError, changing nothing, where the call does not fit in.

    Args:
        name: of the environment, for the messages.

    Attributes:
        under_way: whether a step was sent and not yet received.
        closed: whether `close` was called.
    """

    def __init__(self, name: str):
        self.under_way = False
        self.closed = False
        self._name = name
        self._started = False

    def reset(self) -> None:
        self._refuse_if_closed()
        self._refuse_if_under_way("reset")
        self._started = True

    def send(self) -> None:
        self._refuse_if_closed()
        self._refuse_before_reset("step")
        self._refuse_if_under_way("send")
        self.under_way = True

    def recv(self) -> None:
        self._refuse_if_closed()
        if not self.under_way:
            raise GorilaError(f"environment {self._name}: recv without a step under way: send actions first")
        self.under_way = False

    def render(self) -> None:
        self._refuse_if_closed()
        self._refuse_before_reset("render")
        self._refuse_if_under_way("render")

    def close(self) -> bool:
        """Whether anything is left to close. Never refused, least of all while a step is under way."""
        closed, self.closed = self.closed, True
        return not closed

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise GorilaError(f"environment {self._name}: the environment is closed")

    def _refuse_before_reset(self, call: str) -> None:
        if not self._started:
            raise GorilaError(f"environment {self._name}: {call} before reset")

    def _refuse_if_under_way(self, call: str) -> None:
        if self.under_way:
            raise GorilaError(f"environment {self._name}: {call} while a step is under way: recv it first")
