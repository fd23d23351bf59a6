"""Both backends behind one fixture. What a test asserts holds for each of them."""

from __future__ import annotations

import pytest

from gorila_jax.replay import make_replay


@pytest.fixture(params=["memory", pytest.param("reverb", marks=pytest.mark.reverb)])
def backend(request):
    if request.param == "reverb":
        pytest.importorskip("reverb", reason="Reverb is not installed: the in-process replay alone is tested")
    return request.param


@pytest.fixture
def open_replay(backend):
    """Builds replays of either backend and closes them after the test."""
    replays = []

    def build(table, num_tables=1, seed=0, run_id="run", num_servers=1):
        replays.append(
            make_replay(backend, table, num_tables, seed=seed, run_id=run_id, num_servers=num_servers)
        )
        return replays[-1]

    yield build
    for replay in replays:
        replay.close()
