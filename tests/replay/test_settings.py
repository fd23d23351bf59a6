"""Arithmetic and checks that need no backend."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from gorila_jax.replay import make_replay
from gorila_jax.replay.limiter import Limiter, check_limiter, smallest_error_buffer
from gorila_jax.replay.signature import row_bytes
from gorila_jax.replay.table import appears_whole, check_memory, check_table, estimate_bytes, split_table
from gorila_jax.types import ConfigError, ReplayError
from tests.replay.steps import table


def test_the_limiter_keeps_the_error_within_its_range():
    limiter = Limiter(min_items=10, samples_per_insert=2.0, error_buffer=5.0)
    assert (limiter.min_error, limiter.max_error) == (10 * 2 - 5, 10 * 2 + 5)
    assert limiter.can_insert(size=9, inserted=9, sampled=0)
    assert not limiter.can_sample(1, size=9, inserted=9, sampled=0)
    assert limiter.can_insert(size=11, inserted=11, sampled=0)  # 12 * 2 - 0 = 24
    assert not limiter.can_insert(size=12, inserted=12, sampled=0)  # 13 * 2 - 0 = 26
    assert limiter.can_sample(5, size=10, inserted=10, sampled=0)  # 10 * 2 - 5 = 15
    assert not limiter.can_sample(6, size=10, inserted=10, sampled=0)


def test_a_free_limiter_only_waits_for_the_first_items():
    limiter = Limiter(min_items=10, samples_per_insert=0.0, error_buffer=0.0)
    assert limiter.can_insert(size=10**6, inserted=10**6, sampled=0)
    assert limiter.can_sample(10**6, size=10, inserted=10, sampled=10**9)
    assert not limiter.can_sample(1, size=9, inserted=9, sampled=0)


@pytest.mark.parametrize("per_insert", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("at_once", [1, 16])
def test_with_the_smallest_buffer_one_side_can_always_go_on(per_insert, batch, at_once):
    buffer = smallest_error_buffer(per_insert, batch, inserts_at_once=at_once)
    limiter = Limiter(100, per_insert, buffer)
    error = limiter.min_error
    while error <= limiter.max_error:  # every value that the error can take, in small steps
        can_insert = error + at_once * per_insert <= limiter.max_error
        can_sample = error - batch >= limiter.min_error
        assert can_insert or can_sample
        error += 0.125


def test_below_the_least_buffer_both_sides_would_wait():
    least = smallest_error_buffer(8.0, 32)
    check_limiter(Limiter(100, 8.0, least), 32)
    smaller = Limiter(100, 8.0, least - 1)
    error = smaller.max_error - 8.0 + 0.5
    assert error + 8.0 > smaller.max_error
    assert error - 32 < smaller.min_error
    with pytest.raises(ConfigError, match="the least that works is 20"):
        check_limiter(smaller, 32)


def test_tables_together_need_the_buffer_of_each_in_its_share_of_a_batch():
    least = 4 * smallest_error_buffer(8.0, 32 // 4)  # 4 * (8 + 8) / 2
    check_limiter(Limiter(100, 8.0, least), 32, 4)
    with pytest.raises(
        ConfigError, match=r"batches of 32 samples from 4 tables: .* the least that works is 32"
    ):
        check_limiter(Limiter(100, 8.0, least - 1), 32, 4)


def test_tables_share_what_is_one_replay():
    whole = table(capacity=90, min_items=10, per_insert=4.0, buffer=60.0, exponent=0.6)
    part = split_table(whole, 3)
    assert part == whole._replace(capacity_items=30, min_items=4, error_buffer=20.0)
    assert split_table(whole, 1) == whole


def test_prefetch_and_larger_steps_need_a_larger_buffer():
    assert smallest_error_buffer(8.0, 32) == (32 + 8) / 2
    assert smallest_error_buffer(8.0, 32, prefetch_batches=2) == (3 * 32 + 8) / 2
    assert smallest_error_buffer(8.0, 32, inserts_at_once=16) == (32 + 16 * 8) / 2
    assert smallest_error_buffer(0.125, 1) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 10, "min_items": 11}, "waits for 11 items, but a table holds at most 10"),
        ({"window": 0}, "window_steps is 0"),
        ({"min_items": 0}, "min_items is 0"),
        ({"exponent": float("nan")}, "priority_exponent is nan"),
        ({"per_insert": 8.0, "buffer": 4.0}, "an error buffer of 4"),
    ],
)
def test_a_table_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_table(table(**settings), 1)


def test_a_directory_appears_when_all_of_it_is_written(tmp_path):
    with appears_whole(str(tmp_path / "a" / "saved")) as path:
        (path / "file").write_text("whole")
        assert not (tmp_path / "a" / "saved").exists()
    assert (tmp_path / "a" / "saved" / "file").read_text() == "whole"
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["saved"]


@pytest.mark.parametrize("failure", [OSError("no space left"), ReplayError("the server died")])
def test_nothing_is_left_of_a_directory_that_was_not_finished(tmp_path, failure):
    def write():
        with appears_whole(str(tmp_path / "saved")) as path:
            (path / "file").write_text("half")
            raise failure

    with pytest.raises(ReplayError, match=f"cannot save the replay to .*saved: {failure}"):
        write()
    assert not list(tmp_path.iterdir())


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match="'memory'"):
        make_replay("redis", table(), 1)


def test_the_replay_in_memory_has_no_servers():
    with pytest.raises(ConfigError, match="no servers"):
        make_replay("memory", table(), 1, addresses=["localhost:1"])


def test_the_estimate_counts_a_row_once():
    spec = table(shape=(84, 84), window=5, capacity=10**6)
    data = 84 * 84 + 4 + 4 + 4 + 1
    assert row_bytes(spec.signature) == data
    for backend in ("memory", "reverb"):
        one = estimate_bytes(spec, 1, backend, 1)
        assert 1e6 * data < one < 1.6e6 * data
        assert estimate_bytes(spec, 3, backend, 1) == 3 * one


def test_a_replay_larger_than_the_memory_is_refused():
    check_memory(10**9, 10**9, 10)
    with pytest.raises(ConfigError, match=r"7\.1 GB when full, but 4\.0 GB .* 1,000,000 to about 510,000$"):
        check_memory(7_100_000_000, 4_000_000_000, 1_000_000)


def test_importing_replay_loads_no_tensorflow():
    code = (
        "import sys, gorila_jax.replay, gorila_jax.replay.memory, gorila_jax.replay.limiter\n"
        "gorila_jax.replay.reverb_available()\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] in ('tensorflow', 'reverb')]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_reverb_counts_as_available_only_beside_tensorflow(monkeypatch):
    from gorila_jax import replay

    for missing in ("reverb", "tensorflow", ""):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, missing=missing: name != missing or None
        )
        assert replay.reverb_available() == (missing == "")
