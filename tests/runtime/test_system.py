"""What the wiring of a run promises, step by step."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time

import numpy as np
import pytest

from gorila_jax.agents import find_recipe
from gorila_jax.config import override
from gorila_jax.environments import environment_spec
from gorila_jax.replay.limiter import smallest_error_buffer
from gorila_jax.replay.memory.replay import MemoryWriter
from gorila_jax.rl.exploration import ladder
from gorila_jax.runtime import system as system_module
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.lockstep import run_lockstep
from gorila_jax.runtime.system import checksum, table_spec
from gorila_jax.runtime.threads import run_threads
from gorila_jax.types import ConfigError, Environment, GorilaError, ReplayError
from tests.runtime.systems import build, config_of

PATIENCE_S = 120


class Watched(Environment):
    """An environment that keeps its first observations and every action."""

    def __init__(self, environment):
        self.inner, self.spec = environment, environment.spec
        self.num_environments = environment.num_environments
        self.first, self.actions, self.closed = None, [], False

    def reset(self):
        step = self.inner.reset()
        self.first = step.observation.copy()
        return step

    def send(self, actions):
        self.actions.append(actions.copy())
        self.inner.send(actions)

    def recv(self):
        return self.inner.recv()

    def close(self):
        self.closed = True
        self.inner.close()


@pytest.fixture
def watched(monkeypatch):
    """The environments of every system that the test builds, in the order of their actors."""
    made: list[Watched] = []
    make = system_module.make_environment

    def make_watched(*args, **kwargs):
        made.append(Watched(make(*args, **kwargs)))
        return made[-1]

    monkeypatch.setattr(system_module, "make_environment", make_watched)
    return made


def play(config, generation=0, num_steps=20):
    system = build(config, generation=generation)
    for _ in range(num_steps):
        for actor in system.actors:
            assert actor.step(0.0)
    system.close()


def test_actors_have_environments_and_randomness_of_their_own_and_a_resumed_run_has_new_ones(watched):
    config = config_of(**{"actor.num_actors": 4, "env.num_environments": 8, "replay.samples_per_insert": 0.0})
    play(config)
    play(config, generation=1)
    play(config)
    other = config_of(
        **{"actor.num_actors": 4, "env.num_environments": 8, "replay.samples_per_insert": 0.0, "run.seed": 1}
    )
    play(other)
    first, resumed, again, another = (watched[i : i + 4] for i in range(0, 16, 4))
    for runs in (first + resumed, first + another):
        assert len({environment.first.tobytes() for environment in runs}) == 8
        # Epsilon is about 1 throughout.
        assert len({np.array(environment.actions).tobytes() for environment in runs}) == 8
    for one, same in zip(first, again, strict=True):
        assert (one.first == same.first).all()
        assert (np.array(one.actions) == np.array(same.actions)).all()


def on_a_ladder():
    """A user's own agent, whose exploration is Ape-X's."""
    return find_recipe("gorila")._replace(
        exploration=lambda config: lambda progress, environment, num_environments: ladder(
            environment, num_environments
        )
    )


@pytest.mark.parametrize(("num_actors", "num_environments"), [(8, 1), (2, 4), (1, 8)])
def test_a_ladder_runs_over_all_environments_of_all_actors(num_actors, num_environments):
    config = config_of(**{"actor.num_actors": num_actors, "env.num_environments": num_environments})
    system = build(config, on_a_ladder())
    rungs = np.concatenate(system.epsilons())
    assert rungs == pytest.approx([0.4 ** (1 + i) for i in range(8)])
    assert rungs == pytest.approx(
        [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655], rel=1e-3
    )


def test_a_ladder_of_one_environment_divides_by_nothing():
    (rungs,) = build(config_of(**{"env.num_environments": 1}), on_a_ladder()).epsilons()
    assert rungs == pytest.approx([0.4])


def test_episodes_are_reported_with_the_epsilon_of_their_rung():
    config = config_of(**{"actor.num_actors": 2, "env.num_environments": 1, "replay.samples_per_insert": 0.0})
    system = build(config, on_a_ladder())
    for _ in range(30):
        for actor in system.actors:
            actor.step(0.0)
    by_actor = {summary.actor: summary for summary in system.episodes.actors()}
    assert by_actor[0].epsilon_mean == pytest.approx(0.4)
    assert by_actor[1].epsilon_mean == pytest.approx(0.4**8)
    assert sum(summary.episodes for summary in by_actor.values()) == system.episodes.row()["episodes"]


def test_what_actors_act_with_is_the_server_s_parameters_of_the_version_they_report(monkeypatch):
    acted_with: list[str] = []
    make_policy = system_module.make_policy

    def make_watched_policy(network):
        policy = make_policy(network)

        def act(parameters, *rest):
            acted_with.append(checksum(parameters))
            return policy(parameters, *rest)

        return act

    monkeypatch.setattr(system_module, "make_policy", make_watched_policy)
    config = config_of(**{"actor.num_actors": 2, "learner.num_learners": 2, "parameter_server.num_shards": 3})
    system = build(config)
    at_version = {0: checksum(system.server.pull_policy()[1])}
    while system.server.status().version < 100:
        for actor in system.actors:
            actor.step(0.0)
            assert acted_with[-1] == at_version[actor.parameter_version]
        for learner in itertools.cycle(system.learners):
            if not learner.step(0.0):
                break
            version, parameters = system.server.pull_policy()
            at_version[version] = checksum(parameters)
    assert all(actor.parameter_version > 0 for actor in system.actors)
    assert len(set(at_version.values())) == len(at_version)


def test_an_actor_twenty_times_slower_lags_by_no_more_than_its_own_period():
    period = 5
    config = config_of(**{"actor.num_actors": 2, "actor.parameter_period_steps": period})
    system = build(config)
    slow, fast = system.actors
    updates_per_step = []
    for step in range(1200):
        before = system.server.status().version
        for actor in (fast, slow) if step % 20 == 0 else (fast,):
            actor.step(0.0)
        while any(learner.step(0.0) for learner in system.learners):
            pass
        version = system.server.status().version
        updates_per_step.append(version - before)
        if slow.parameter_version >= 0:
            # Its parameters are those of its own last multiple of the period; nothing queues up for it.
            last_pull = 20 * period * ((slow.steps - 1) // period)
            assert version - slow.parameter_version <= sum(updates_per_step[last_pull:])
        assert version - max(0, fast.parameter_version) <= sum(updates_per_step[-period:])
    assert slow.steps == 60
    assert slow.parameter_version > 0


def test_the_target_period_goes_on_in_server_updates_while_actors_pause():
    period = 10
    config = config_of(
        **{
            "learner.num_learners": 2,
            "replay.samples_per_insert": 0.0,
            "parameter_server.num_shards": 2,
            "parameter_server.target_period_updates": period,
        }
    )
    system = build(config)
    for _ in range(40):
        system.actors[0].step(0.0)
    for number in range(1, 61):  # the learners take turns; the actor does nothing
        assert system.learners[number % 2].step(0.0)
        status = system.server.status()
        assert status.version == number
        assert status.target_version == number - number % period
    assert system.actors[0].steps == 40


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


@pytest.mark.parametrize("layout", ["global", "local"])
def test_items_built_are_items_inserted(layout):
    """Every real step makes one item, and none is lost on its way through two actors' threads. What the last
    step of each actor brought would have entered with the next one."""
    coordinator = Coordinator(3000)
    config = config_of(
        **{
            "actor.num_actors": 2,
            "learner.num_learners": 2,
            "learner.n_steps": 1,
            "replay.layout": layout,
            "replay.samples_per_insert": 0.5,
            "run.lockstep": False,
        }
    )
    system = build(config, coordinator=coordinator)
    run_threads(system.workers(), coordinator, lambda: None, 0.01)
    assert coordinator.failure is None
    built = sum(writer.inserted_items for writer in system.writers)
    waiting = sum(writer.waiting_items for writer in system.writers)
    inserted = sum(system.replay.status(table).inserted_items for table in range(system.replay.num_tables))
    assert coordinator.steps >= 3000
    assert 0 <= coordinator.steps - built <= 2 * config.env.num_environments
    assert inserted == built - waiting
    assert waiting <= 2 * config.env.num_environments  # no more than one step of each actor
    trained = sum(learner.samples for learner in system.learners)
    drawn = sum(system.replay.status(table).sampled_items for table in range(system.replay.num_tables))
    assert 0 <= drawn - trained <= 2 * (config.learner.prefetch_batches + 1) * config.learner.batch_size
    system.close()


@pytest.mark.parametrize("samples_per_insert", [1.0, 8.0])
@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_neither_side_waits_for_ever_with_the_smallest_buffer(samples_per_insert, prefetch_batches):
    coordinator = Coordinator(10**9)
    config = config_of(
        **{
            "learner.batch_size": 32,
            "learner.prefetch_batches": prefetch_batches,
            "replay.learning_starts_transitions": 32,
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
            "replay.capacity_transitions": 900,
            "replay.learning_starts_transitions": 100,
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
    three = override(
        alone, {"replay.layout": "local", "learner.num_learners": 3, "actor.num_actors": 3}
    )
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


def test_a_resumed_actor_is_told_the_epsilon_of_the_run_before_it_holds_parameters():
    config = config_of(**{"actor.epsilon_decay_updates": 100})
    coordinator = Coordinator(600)
    system = build(config, coordinator=coordinator)
    run_lockstep(system, coordinator, lambda: None)
    resumed = build(config, generation=1)
    assert resumed.epsilons()[0] == pytest.approx(1.0)
    resumed.restore(system.state())
    assert resumed.epsilons()[0] == pytest.approx(config.actor.epsilon_final)


def test_parts_that_cannot_close_do_not_keep_the_others_open(watched, monkeypatch):
    def close(writer) -> None:
        raise GorilaError("the replay does not answer")

    monkeypatch.setattr(MemoryWriter, "close", close)
    system = build(config_of(**{"actor.num_actors": 2}))
    with pytest.raises(GorilaError, match="does not answer"):
        system.close()
    assert [environment.closed for environment in watched] == [True, True]
    with pytest.raises(ReplayError):
        system.writers[0].ready(0.0)  # the replay is closed too


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_all_but_the_learners_yield(monkeypatch):
    """What a worker starts when it is built yields as it does itself."""
    built_at = []
    make = system_module.make_environment

    def make_noted(*args, **kwargs):
        built_at.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return make(*args, **kwargs)

    monkeypatch.setattr(system_module, "make_environment", make_noted)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    system = build(config_of(**{"run.feeder_niceness": 2, "run.lockstep": False}))
    niceness = system.niceness()
    assert niceness.keys() == system.workers().keys()
    assert {name for name, nice in niceness.items() if nice == 0} == {"learner_0"}
    assert set(niceness.values()) == {0, 2}
    assert set(built_at) == {min(19, before + 2)}
    system.close()


def test_in_lockstep_everything_is_built_in_the_one_thread_there_is(monkeypatch):
    """Some environments may be used in the thread only that they were made in."""
    makers = []
    make = system_module.make_environment

    def make_noted(*args, **kwargs):
        makers.append(threading.current_thread())
        return make(*args, **kwargs)

    monkeypatch.setattr(system_module, "make_environment", make_noted)
    build(config_of(**{"run.lockstep": True})).close()
    assert makers == [threading.current_thread()]
