from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import jax
import numpy as np
import pytest

from gorila_jax.types import Gradient
from tests.parameter_server.problem import FORMS, filled, make_server, values

YES, NO = np.array([True]), np.array([False])


def gradient_function(function: Any) -> Any:
    """Parameters [1, ...] to fresh gradients [1, ...] on the device, as a learner makes them."""
    return jax.pmap(lambda tree: jax.tree.map(function, tree), devices=jax.devices()[:1])


@pytest.mark.parametrize("form", ["one_shard", "three_shards"])
@pytest.mark.parametrize("donate", [False, True])
def test_concurrent_pushes_lose_nothing(form: str, donate: bool) -> None:
    server = make_server(
        form, filled(24), donate, optimizer="sgd", learning_rate=1.0, target_period_updates=300
    )
    ones = gradient_function(jax.numpy.ones_like)
    start = threading.Barrier(8)

    def learner(index: int) -> None:
        start.wait()
        for _ in range(125):
            snapshot = server.pull(index % 2)
            server.push(index % 2, Gradient(snapshot.version, ones(snapshot.parameters), YES, NO))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(learner, range(8)))
    snapshot, status = server.pull(0), server.status()
    assert set(snapshot.version) == {1000}
    np.testing.assert_array_equal(values(snapshot.parameters), 24 - 1000)
    np.testing.assert_array_equal(values(snapshot.target_parameters), 24 - 900)
    assert (status.version, status.target_version, status.accepted) == (1000, 900, 1000)
    assert sum(status.staleness_histogram) == 1000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("donate", [False, True])
def test_readers_see_consistent_values_while_a_learner_pushes(form: str, donate: bool) -> None:
    # Unit gradients and momentum 1: after v updates the trace is v and a parameter -v (v + 1) / 2, exactly.
    server = make_server(
        form,
        donate=donate,
        optimizer="sgd",
        learning_rate=1.0,
        optimizer_options=(("momentum", 1.0),),
        target_period_updates=50,
    )
    ones = gradient_function(jax.numpy.ones_like)
    done = threading.Event()
    seen: list[set[int]] = [set(), set()]  # versions, by each reader

    def learner() -> int:
        pushes = 0
        try:
            # Until both have been there; beyond 5 000 the sums would no longer be exact in float32.
            while pushes < 500 or (pushes < 5_000 and min(map(len, seen)) < 4):
                pushes += 1
                snapshot = server.pull(0)
                server.push(0, Gradient(snapshot.version, ones(snapshot.parameters), YES, NO))
        finally:
            done.set()
        return pushes

    def actor() -> None:
        while not done.is_set():
            version, parameters = server.pull_policy()
            if form != "three_shards":
                np.testing.assert_array_equal(values(parameters), -version * (version + 1) / 2)
            assert values(parameters).max() <= -version * (version + 1) / 2
            seen[0].add(version)

    def coordinator() -> None:
        while not done.is_set():
            status = server.status()
            assert status.target_version == status.version // 50 * 50
            state = server.state()
            parameters, versions = values(state["parameters"]), state["versions"]
            for i, version in enumerate(versions.tolist()):
                part = slice(i * 16 // len(versions), (i + 1) * 16 // len(versions))
                np.testing.assert_array_equal(parameters[part], -version * (version + 1) / 2)
                np.testing.assert_array_equal(values(state["optimizer"][str(i)]), version)
            seen[1].update(versions.tolist())

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(actor), pool.submit(coordinator)]
        pushes = pool.submit(learner).result()
        for reader in readers:
            reader.result()
    assert server.status().version == pushes
    assert min(map(len, seen)) >= 4


def test_two_asynchronous_learners_come_as_far_as_one_on_a_convex_problem() -> None:
    minimum = filled(3)
    gradients = jax.pmap(
        lambda parameters: jax.tree.map(lambda x, m: x - m, parameters, minimum), devices=jax.devices()[:1]
    )

    def loss(learners: int) -> float:
        server = make_server(
            "three_shards",
            optimizer="sgd",
            learning_rate=0.005,  # a third of the way is left: what gets lost on it shows
            max_staleness_updates=0,  # a thread may be held up for as long as the machine likes
            target_period_updates=10,
        )

        def learner(index: int) -> None:
            for _ in range(200 // learners):
                snapshot = server.pull(index)
                server.push(index, Gradient(snapshot.version, gradients(snapshot.parameters), YES, NO))

        with concurrent.futures.ThreadPoolExecutor(learners) as pool:
            list(pool.map(learner, range(learners)))
        assert server.status().accepted == 200
        return float(np.square(values(server.pull_policy()[1]) - 3).mean())

    synchronous, asynchronous = loss(1), loss(2)
    assert synchronous == pytest.approx(0.995**400 * 3**2, rel=1e-3)
    assert asynchronous == pytest.approx(synchronous, rel=0.1)


@pytest.mark.parametrize("form", FORMS)
def test_later_pushes_leave_pulled_parameters_as_they_are(form: str) -> None:
    server = make_server(form, filled(5), donate=True, optimizer="sgd", learning_rate=1.0)
    snapshot, (version, policy) = server.pull(0), server.pull_policy()
    assert version == 0
    assert all(
        np.shape(leaf) == np.shape(want)
        for leaf, want in zip(jax.tree.leaves(policy), jax.tree.leaves(filled(5)), strict=True)
    )
    ones = gradient_function(jax.numpy.ones_like)
    for _ in range(3):
        server.push(0, Gradient(snapshot.version, ones(snapshot.parameters), YES, NO))
    for tree in (snapshot.parameters, snapshot.target_parameters, policy):
        np.testing.assert_array_equal(values(tree), 5)
    np.testing.assert_array_equal(values(server.pull_policy()[1]), 5 - 3)
