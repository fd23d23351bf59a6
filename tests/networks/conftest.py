from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_rank_promotion() -> Iterator[None]:
    """A missing axis is an error, not a broadcast."""
    with jax.numpy_rank_promotion("raise"):
        yield
