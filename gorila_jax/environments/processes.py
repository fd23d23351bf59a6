"""Environments in a process each: for those that compute, most of all in Python."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from gorila_jax.types import GorilaError

_MAIN_MODULE = threading.Lock()


class ProcessVectorEnv(AsyncVectorEnv):
    """Gymnasium's, made to notice a process that has died, and to close with a step under way.

    Args:
        name: `module:factory` of the environments, which their processes import.
        makers: of one environment each, and can be pickled.

    Raises:
        GorilaError: a process has died; and so of every other call.
    """

    def __init__(self, name: str, makers: Sequence[Callable[[], gymnasium.Env]]):
        self._name = name
        self._broken = False  # a process has died
        self._under_way = False
        main_is_needed = name.partition(":")[0] == "__main__"
        with contextlib.nullcontext() if main_is_needed else _without_main_module():
            # spawn: forking a process in which JAX runs freezes the child
            self._ask(super().__init__, makers, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP)

    def reset(
        self, *, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return self._ask(super().reset, seed=seed, options=options)

    def step_async(self, actions: np.ndarray) -> None:
        self._ask(super().step_async, actions)
        self._under_way = True

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._under_way = False
        return self._ask(super().step_wait, timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self._ask(super().call, name, *args, **kwargs)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the processes, by force where they do not end a step under way in `timeout` seconds."""
        # One that has raised an error has no pipe any more, and has ended as it should.
        own = zip(self.parent_pipes, self.processes, strict=True)
        self._broken |= any(pipe is not None and not process.is_alive() for pipe, process in own)
        if self._under_way and not self._broken and not terminate:
            try:
                self.step_wait(timeout)
            except Exception:  # nobody has asked for this step's result, and so for its fault neither
                self._broken = True
        if self._broken:
            # Asking politely would wait for answers that the dead one owes; Gymnasium waits for none on a
            # closed pipe.
            for pipe in self.parent_pipes:
                if pipe is not None:
                    pipe.close()
        super().close_extras(timeout=timeout, terminate=terminate or self._broken)

    def _ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (EOFError, ConnectionError) as error:
            if any(pipe is None for pipe in self.parent_pipes):  # an environment has raised it
                raise
            self._broken = True
            raise GorilaError(f"environment {self._name}: one of its processes has died") from error


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Processes that are spawned meanwhile do not run their parent's main module again.

    They would for the sake of pickled objects that are defined in it, which none of ours is. But the programs
    import jax, which each process would load, and a script may not expect to be run twice. A factory that
    itself imports something from `__main__` does not find it: name such a factory `__main__:factory`.
    """
    with _MAIN_MODULE:  # or another thread would take the empty one for the module to put back
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
