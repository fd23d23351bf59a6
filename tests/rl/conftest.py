from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_rank_promotion() -> Iterator[None]:
    """A missing axis is an error, not a broadcast."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(params=["plain", "jitted"])
def maybe_jit(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    """Runs a test on the function as it is, and jitted."""
    return jax.jit if request.param == "jitted" else lambda function: function
