"""The ratio of samples to inserts, as a whole run holds it."""

from __future__ import annotations

import math
import time

import pytest

from gorila_jax.agents import find_recipe
from gorila_jax.config import override
from gorila_jax.environments import environment_spec
from gorila_jax.replay.limiter import smallest_error_buffer
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.lockstep import run_lockstep
from gorila_jax.runtime.plan import table_spec
from gorila_jax.runtime.system import checksum
from gorila_jax.runtime.threads import run_threads
from gorila_jax.types import ConfigError
from tests.runtime.systems import build, config_of

PATIENCE_S = 120


def test_inserts_stop_at_the_limiter_while_the_first_update_is_delayed():
    config = config_of(**{"actor.num_actors": 3, "replay.samples_per_insert": 2.0})
    system = build(config)
    for _ in range(300):
        for actor in system.actors:
            actor.step(0.0)
    spec = table_spec(config, find_recipe("gorila"), system.spec)
    most = spec.min_items + spec.error_buffer / spec.samples_per_insert
    assert not any(actor.step(0.0) for actor in system.actors)
    assert most - 1 < system.replay.status(0).inserted_items <= most
    assert "inserts must wait, samples may go on" in system.describe_waits()
    assert system.learners[0].step(0.0)  # and what held them back goes on


def play_with_two_actors(overrides):
    """3 000 steps in threads; the system, and how many items its writers built of them."""
    coordinator = Coordinator(3000)
    config = config_of(**{"actor.num_actors": 2, "learner.n_steps": 1, "run.lockstep": False}, **overrides)
    system = build(config, coordinator=coordinator)
    run_threads(system.workers(), coordinator, lambda: None, 0.01)
    assert coordinator.failure is None
    built = sum(writer.inserted_items for writer in system.writers)
    assert coordinator.steps >= 3000
    assert 0 <= coordinator.steps - built <= 2 * config.env.num_environments
    return system, built


@pytest.mark.parametrize("layout", ["global", "local"])
def test_items_built_are_items_inserted(layout):
    """Every real step makes one item, and none is lost on its way through two actors' threads. What the last
    step of each actor brought would have entered with the next one."""
    more = {"learner.num_learners": 2, "replay.layout": layout, "replay.samples_per_insert": 0.5}
    system, built = play_with_two_actors(more)
    config = system.config
    waiting = sum(writer.waiting_items for writer in system.writers)
    inserted = sum(system.replay.status(table).inserted_items for table in range(system.replay.num_tables))
    assert inserted == built - waiting
    assert waiting <= 2 * config.env.num_environments  # no more than one step of each actor
    trained = sum(learner.samples for learner in system.learners)
    drawn = sum(system.replay.status(table).sampled_items for table in range(system.replay.num_tables))
    assert 0 <= drawn - trained <= 2 * (config.learner.prefetch_batches + 1) * config.learner.batch_size
    system.close()


@pytest.mark.reverb
def test_items_built_are_items_in_reverb():
    """The same with a server and its threads between them; its ratio is free, so that all may enter."""
    pytest.importorskip("reverb", reason="Reverb is not installed")
    more = {"replay.backend": "reverb", "replay.samples_per_insert": 0.0, "replay.capacity_steps": 10_000}
    system, built = play_with_two_actors(more)
    assert all(writer.ready(PATIENCE_S) for writer in system.writers)
    status = system.replay.status(0)
    assert status.inserted_items == status.size_items == built
    system.close()


@pytest.mark.parametrize("samples_per_insert", [1.0, 8.0])
@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_neither_side_waits_for_ever_with_the_smallest_buffer(samples_per_insert, prefetch_batches):
    coordinator = Coordinator(10**9)
    config = config_of(
        **{
            "learner.batch_size": 32,
            "learner.prefetch_batches": prefetch_batches,
            "replay.learning_starts_steps": 32,
            "replay.samples_per_insert": samples_per_insert,
            "replay.error_buffer_samples": math.ceil(smallest_error_buffer(samples_per_insert, 32)),
            "run.lockstep": False,
        }
    )
    system = build(config, coordinator=coordinator)
    deadline = time.monotonic() + PATIENCE_S

    def tick() -> None:
        assert time.monotonic() < deadline, system.describe_waits()
        if system.server.status().version >= 100:
            coordinator.stop("budget")

    run_threads(system.workers(), coordinator, tick, 0.01)
    assert coordinator.failure is None
    assert system.server.status().version >= 100
    system.close()


def test_tables_of_a_global_replay_share_its_settings():
    config = config_of(
        **{
            "actor.num_actors": 3,
            "learner.batch_size": 9,
            "replay.num_servers": 3,
            "replay.capacity_steps": 900,
            "replay.learning_starts_steps": 100,
            "replay.error_buffer_samples": 90,
            "replay.samples_per_insert": 2.0,
        }
    )
    spec = environment_spec(config.environment, config.env)
    table = table_spec(config, find_recipe("gorila"), spec)
    assert (table.capacity_items, table.min_items, table.error_buffer) == (300, 34, 30.0)
    local = override(config, {"replay.layout": "local", "learner.num_learners": 3})
    table = table_spec(local, find_recipe("gorila"), spec)
    assert (table.capacity_items, table.min_items, table.error_buffer) == (900, 100, 90.0)


def test_the_buffer_of_a_local_replay_is_that_of_its_own_actors_and_learner():
    alone = config_of(**{"replay.samples_per_insert": 2.0})
    three = override(alone, {"replay.layout": "local", "learner.num_learners": 3, "actor.num_actors": 3})
    spec = environment_spec(alone.environment, alone.env)
    buffers = {table_spec(config, find_recipe("gorila"), spec).error_buffer for config in (alone, three)}
    assert len(buffers) == 1


def test_a_replay_of_several_tables_is_fed_and_drawn_from_evenly_and_in_lockstep_always_alike():
    def run():
        config = config_of(
            **{
                "actor.num_actors": 4,
                "replay.num_servers": 2,
                "replay.priority_exponent": 0.6,
            }
        )
        coordinator = Coordinator(200)
        system = build(config, coordinator=coordinator)
        run_lockstep(system, coordinator, lambda: None)
        tables = [system.replay.status(table) for table in range(system.replay.num_tables)]
        assert system.server.status().version > 50
        return tables, checksum(system.server.pull_policy()[1])

    tables, parameters = run()
    assert len(tables) == 2
    assert abs(tables[0].inserted_items - tables[1].inserted_items) <= 4 * 2  # a round of actors
    assert abs(tables[0].sampled_items - tables[1].sampled_items) <= 4  # a part that the learner keeps
    assert run() == (tables, parameters)


def test_a_buffer_with_no_room_for_a_batch_is_refused():
    config = config_of(**{"learner.batch_size": 32, "replay.error_buffer_samples": 10})
    with pytest.raises(ConfigError, match="the least that works is 20"):
        table_spec(config, find_recipe("gorila"), environment_spec(config.environment, config.env))


def test_a_run_resumed_without_its_replay_fills_it_first_and_keeps_the_ratio():
    config = config_of(**{"replay.samples_per_insert": 2.0})
    coordinator = Coordinator(1000)
    system = build(config, coordinator=coordinator)
    run_lockstep(system, coordinator, lambda: None)
    before = system.server.status().version
    assert before > 200

    resumed = build(config, generation=1)
    resumed.restore(system.state())
    assert resumed.server.status().version == before
    assert resumed.learners[0].samples == system.learners[0].samples
    spec = table_spec(config, find_recipe("gorila"), resumed.spec)
    for _ in range(200):
        resumed.actors[0].step(0.0)
        while resumed.learners[0].step(0.0):
            pass
        inserted = resumed.replay.status(0).inserted_items
        samples = (resumed.server.status().version - before) * config.learner.batch_size
        if inserted < spec.min_items:
            assert samples == 0
        assert samples <= max(0, (inserted - spec.min_items) * spec.samples_per_insert + spec.error_buffer)
    assert samples > 0
