"""What the wiring of a run promises, step by step."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading

import jax
import numpy as np
import pytest

from gorila_jax.agents import RECIPES
from gorila_jax.replay.memory.replay import MemoryWriter
from gorila_jax.runtime import system as system_module
from gorila_jax.runtime.system import checksum
from gorila_jax.runtime.threads import IDLE
from gorila_jax.types import Environment, GorilaError, ReplayError
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


@pytest.mark.parametrize("agent", list(RECIPES))
def test_a_run_under_way_compiles_nothing(agent, caplog):
    recurrent = {"network.core_units": 8} if agent in ("drqn", "r2d2") else {}
    system = build(config_of(agent, **{"parameter_server.target_period_updates": 4, **recurrent}))

    def play(updates):
        """So many more, and a look at the metrics, as a run takes one."""
        while system.server.status().version < updates:
            for worker in [*system.actors, *system.learners, *system.priority_writers]:
                worker.step(0.0)
        assert all(learner.metrics() for learner in system.learners)

    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        play(10)
        assert any("ompil" in record.getMessage() for record in caplog.records)
        caplog.clear()
        play(30)
    system.close()
    assert [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()] == []


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
    assert {name for name, nice in niceness.items() if nice == IDLE} == {"prefetcher_0"}
    assert set(niceness.values()) == {0, 2, IDLE}
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
