"""What both forms promise about refusals, counters and the target network."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gorila_jax.parameter_server import STALENESS_BINS, device
from gorila_jax.types import Gradient
from tests.parameter_server.problem import (
    FORMS,
    assert_same_bits,
    filled,
    make_server,
    push,
    random_tree,
    values,
)

MINUS_ONE = {"optimizer": "sgd", "learning_rate": 1.0}  # parameters 0 - version, exactly


def with_one(value: float) -> dict:
    gradients = filled(1)
    gradients["torso"]["w"][1, 2] = value
    return gradients


@pytest.mark.parametrize("form", FORMS)
def test_a_refused_gradient_changes_no_bit_and_counts_once(form: str) -> None:
    server = make_server(form, random_tree(0), optimizer="adam", max_staleness_updates=5)
    for i in range(3):
        push(server, random_tree(i))
    expected = server.state()
    for reason, refused in (
        ("nonfinite", {"gradients": with_one(np.nan)}),  # the server's own check: the flag says finite
        ("nonfinite", {"gradients": with_one(-np.inf)}),
        ("nonfinite", {"gradients": filled(1), "finite": False}),
        ("outlier", {"gradients": filled(1), "outlier": True}),
        ("stale", {"gradients": filled(1), "age": 6}),
        ("nonfinite", {"gradients": with_one(np.nan), "outlier": True, "age": 6}),
        ("nonfinite", {"gradients": filled(1), "finite": False, "outlier": True, "age": 6}),
        ("outlier", {"gradients": filled(1), "outlier": True, "age": 6}),
    ):
        push(server, **refused)
        expected["counters"][reason] += 1
        assert_same_bits(server.state(), expected)
    assert server.status().accepted == 3


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_a_thousand_versions_ago_are_refused_and_counted(form: str) -> None:
    server = make_server(form, max_staleness_updates=100, **MINUS_ONE)
    state = server.state()
    state["versions"] += 1000
    server.restore(state)
    push(server, filled(1), age=1000)
    push(server, filled(1), age=101)
    assert server.status().stale == 2
    assert not values(server.pull_policy()[1]).any()
    push(server, filled(1), age=100)
    assert (server.status().stale, server.status().version) == (2, 1001)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_limit_no_age_is_refused(form: str) -> None:
    server = make_server(form, max_staleness_updates=0, **MINUS_ONE)
    push(server, filled(1), age=100_000)
    assert (server.status().accepted, server.status().stale) == (1, 0)


@pytest.mark.parametrize("form", FORMS)
def test_the_histogram_holds_the_ages_of_applied_gradients(form: str) -> None:
    server = make_server(form, max_staleness_updates=STALENESS_BINS + 9, **MINUS_ONE)
    last = STALENESS_BINS - 1
    for age in (0, 1, 1, last - 1, last, STALENESS_BINS + 9, STALENESS_BINS + 10):
        push(server, filled(1), age=age)
    expected = [0] * STALENESS_BINS
    expected[0], expected[1], expected[last - 1], expected[last] = 1, 2, 1, 2
    assert server.status().staleness_histogram == tuple(expected)
    assert server.status().stale == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_version_ahead_of_the_server_is_as_old_as_one_behind(form: str) -> None:
    server = make_server(form, max_staleness_updates=5, **MINUS_ONE)
    push(server, filled(1), age=-5)
    push(server, filled(1), age=-6)
    assert (server.status().accepted, server.status().stale) == (1, 1)
    assert server.status().staleness_histogram[5] == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("period", [1, 3, 8])
def test_the_target_follows_every_period_of_applied_updates_under_random_refusals(
    form: str, period: int
) -> None:
    rng = np.random.default_rng(period)
    server = make_server(form, target_period_updates=period, max_staleness_updates=5, **MINUS_ONE)
    applied = 0
    for _ in range(60):
        kind = rng.choice(["apply", "apply", "nonfinite", "outlier", "stale"])
        push(server, filled(1), 6 if kind == "stale" else 0, kind != "nonfinite", kind == "outlier")
        applied += kind == "apply"
        snapshot = server.pull(0)
        np.testing.assert_array_equal(values(snapshot.parameters), -applied)
        np.testing.assert_array_equal(values(snapshot.target_parameters), -(applied // period * period))
        assert server.status().target_version == applied // period * period
    assert 10 < applied < 50


def test_the_device_form_asks_for_the_version_once_per_period(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server("device", target_period_updates=10, **MINUS_ONE)
    asked = []
    first_replica = device.first_replica
    monkeypatch.setattr(device, "first_replica", lambda tree: asked.append(0) or first_replica(tree))
    for _ in range(39):
        push(server, filled(1))
    assert len(asked) == 3


@pytest.mark.parametrize("form", ["one_shard", "three_shards"])
def test_the_target_period_counts_updates_of_all_learners_once(form: str) -> None:
    server = make_server(form, target_period_updates=4, **MINUS_ONE)
    for i in range(11):
        push(server, filled(1), learner=i % 2)
        for learner in (0, 1):
            target = server.pull(learner).target_parameters
            np.testing.assert_array_equal(values(target), -((i + 1) // 4 * 4))


@pytest.mark.parametrize("form", ["one_shard", "three_shards"])
def test_a_target_is_sent_to_a_learner_once(form: str) -> None:
    server = make_server(form, target_period_updates=2, **MINUS_ONE)
    first = server.pull(0).target_parameters
    push(server, filled(1))
    assert server.pull(0).target_parameters is first
    push(server, filled(1))
    second = server.pull(0).target_parameters
    np.testing.assert_array_equal(values(second), -2)
    np.testing.assert_array_equal(values(server.pull(1).target_parameters), -2)


def test_staleness_is_judged_by_each_shard_alone() -> None:
    server = make_server("three_shards", max_staleness_updates=5, **MINUS_ONE)
    for _ in range(10):
        push(server, filled(1))
    snapshot = server.pull(0)
    assert snapshot.version == (10, 10, 10)
    ones = jax.tree.map(np.ones_like, snapshot.parameters)
    yes, no = np.array([True]), np.array([False])
    server.push(0, Gradient((10, 4, 5), ones, yes, no))
    assert server.pull(0).version == (11, 10, 11)
    flat = values(server.pull_policy()[1])
    assert flat.size == 16
    np.testing.assert_array_equal(flat, [-11] * 5 + [-10] * 5 + [-11] * 6)
    status = server.status()
    assert (status.version, status.accepted, status.stale) == (10, 10, 1)
    assert status.staleness_histogram[0] == 10
    assert sum(status.staleness_histogram) == 10


def test_a_gradient_counts_with_its_greatest_age() -> None:
    server = make_server("three_shards", **MINUS_ONE)
    ones = jax.tree.map(np.ones_like, server.pull(0).parameters)
    server.push(0, Gradient((-2, -7, 0), ones, np.array([True]), np.array([False])))
    assert server.status().staleness_histogram[7] == 1


def test_a_version_of_another_number_of_shards_is_an_error() -> None:
    server = make_server("three_shards", **MINUS_ONE)
    ones = jax.tree.map(np.ones_like, server.pull(0).parameters)
    with pytest.raises(ValueError, match="shorter"):
        server.push(0, Gradient((0, 0), ones, np.array([True]), np.array([False])))
