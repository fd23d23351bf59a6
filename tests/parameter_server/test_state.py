from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from gorila_jax.types import ConfigError
from tests.parameter_server.problem import FORMS, assert_same_bits, filled, make_server, push, random_tree

SETTINGS = {"learning_rate": 1e-2, "target_period_updates": 4, "max_staleness_updates": 5}


def train(server: Any, start: int, end: int) -> None:
    for i in range(start, end):
        push(server, random_tree(i), age=6 if i % 5 == 4 else i % 3, outlier=i % 7 == 6, finite=i != 8)


def assert_plain(tree: Any) -> None:
    if isinstance(tree, dict):
        for key, value in tree.items():
            assert type(key) is str
            assert_plain(value)
    else:
        assert type(tree) is np.ndarray


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_training_continues_with_the_same_bits_after_a_restore(form: str, optimizer: str) -> None:
    whole = make_server(form, random_tree(100), optimizer=optimizer, **SETTINGS)
    train(whole, 0, 13)
    state = whole.state()
    assert_plain(state)
    restored = make_server(form, filled(7), optimizer=optimizer, **SETTINGS)
    restored.pull(0)
    restored.restore(state)
    assert_same_bits(restored.state(), state)
    assert restored.status() == whole.status()
    assert_same_bits(restored.pull(0), whole.pull(0))
    for server in (whole, restored):
        train(server, 13, 25)
    assert_same_bits(restored.state(), whole.state())
    assert restored.status() == whole.status()
    counted = restored.status()
    assert (counted.nonfinite, counted.outlier, counted.stale) == (1, 3, 5)
    assert counted.accepted == counted.version == 25 - 9


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_state_does_not_change_with_later_updates_nor_the_server_with_it(form: str) -> None:
    server = make_server(form, random_tree(0), optimizer="adam", donate=True, **SETTINGS)
    train(server, 0, 6)
    state = server.state()
    server.restore(state)
    bits = [leaf.tobytes() for leaf in _leaves(state)]
    train(server, 6, 12)
    assert [leaf.tobytes() for leaf in _leaves(state)] == bits

    writable = {key: _copies(value) for key, value in state.items()}
    server.restore(writable)
    for leaf in _leaves(writable):
        leaf[...] = 99
    assert_same_bits(server.state(), state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_orbax_keeps_a_state(form: str, optimizer: str, tmp_path: pathlib.Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    server = make_server(form, random_tree(0), optimizer=optimizer, **SETTINGS)
    train(server, 0, 6)
    state = server.state()
    with checkpoint.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        read = checkpointer.restore(tmp_path / "state")
    fresh = make_server(form, filled(0), optimizer=optimizer, **SETTINGS)
    fresh.restore(read)
    assert_same_bits(fresh.state(), state)


@pytest.mark.parametrize(
    ("saved", "running", "message"),
    [
        ({"form": "three_shards"}, {"form": "one_shard"}, r"with 3 shard\(s\).*num_shards=1"),
        ({"form": "device"}, {"form": "three_shards"}, r"with 1 shard\(s\).*num_shards=3"),
        ({"form": "device"}, {"form": "one_shard"}, "optimizer.*num_learners"),
        (
            {"form": "device", "optimizer": "sgd"},
            {"form": "device"},
            "optimizer.*it has nothing, the run has",
        ),
        (
            {"form": "device", "parameters": {"w": np.zeros((2, 3), np.float32)}},
            {"form": "device", "parameters": {"w": np.zeros((2, 4), np.float32)}},
            r"w.*it has shape \(2, 3\), the run has shape \(2, 4\)",
        ),
        (
            {"form": "one_shard", "parameters": {"w": np.zeros((2, 3), np.float32)}},
            {"form": "one_shard", "parameters": {"w": np.zeros((3, 2), np.float32)}},
            r"w.*it has shape \(2, 3\), the run has shape \(3, 2\)",
        ),
    ],
)
def test_another_run_s_state_is_refused_and_leaves_the_server_alone(
    saved: dict[str, Any], running: dict[str, Any], message: str
) -> None:
    server = make_server(**running)
    before = server.state()
    with pytest.raises(ConfigError, match=message):
        server.restore(make_server(**saved).state())
    assert_same_bits(server.state(), before)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter server"):
        make_server("device").restore({"parameters": {}})


def _leaves(tree: Any) -> list[np.ndarray]:
    return [leaf for value in tree.values() for leaf in _leaves(value)] if isinstance(tree, dict) else [tree]


def _copies(tree: Any) -> Any:
    return {key: _copies(value) for key, value in tree.items()} if isinstance(tree, dict) else np.array(tree)
