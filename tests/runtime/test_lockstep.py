"""The order of turns, with workers that only say that it was theirs."""

from __future__ import annotations

import types

import pytest

from gorila_jax.config import Config, override
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.lockstep import run_lockstep
from gorila_jax.types import GorilaError


class Turns:
    """Actors `a`, `b` and learners `x`, `y` that note their names; a learner moves as often as it may."""

    def __init__(
        self, samples_per_insert: float, budget: int, updates_per_round: int = 0, priority_writers: str = ""
    ):
        self.coordinator, self.log = Coordinator(budget), []
        self.allowed, self.updates_per_round = 0, updates_per_round
        self.system = types.SimpleNamespace(
            config=override(Config(), {"replay.samples_per_insert": samples_per_insert}),
            actors=[types.SimpleNamespace(step=self.actor(name)) for name in "ab"],
            learners=[types.SimpleNamespace(step=self.learner(name)) for name in "xy"],
            priority_writers=[types.SimpleNamespace(step=self.learner(name)) for name in priority_writers],
            describe_waits=lambda: "table 0 is empty",
        )

    def actor(self, name):
        def step(timeout_s):
            assert timeout_s == 0.0
            self.log.append(name)
            self.coordinator.count_steps(1)
            self.allowed = self.updates_per_round
            return True

        return step

    def learner(self, name):
        def step(timeout_s):
            if self.allowed <= 0:
                return False
            self.allowed -= 1
            self.log.append(name)
            return True

        return step

    def run(self):
        run_lockstep(self.system, self.coordinator, lambda: self.log.append("|"))
        return "".join(self.log)


def test_with_a_ratio_the_learners_go_on_until_it_is_met():
    assert Turns(8.0, budget=5, updates_per_round=3).run() == "abxyx|abxyx|a|"


def test_new_priorities_are_written_before_the_next_batch_is_drawn():
    turns = Turns(8.0, budget=3, updates_per_round=8, priority_writers="pq")
    assert turns.run() == "abxypqxypq|a|"


def test_with_a_free_ratio_each_learner_makes_one_update_a_round():
    assert Turns(0.0, budget=5, updates_per_round=100).run() == "abxy|abxy|a|"


def test_the_actors_after_the_one_that_used_the_budget_up_have_no_turn():
    assert Turns(8.0, budget=3).run() == "ab|a|"


def test_when_nobody_can_move_it_is_an_error_that_says_who_waits():
    turns = Turns(8.0, budget=10)
    for worker in turns.system.actors:
        worker.step = lambda timeout_s: False
    with pytest.raises(GorilaError, match="nobody can move: table 0 is empty"):
        turns.run()


def test_a_stop_before_anyone_has_moved_is_no_such_error():
    turns = Turns(8.0, budget=10)

    class StopsAfterALook(Coordinator):
        def stopped(self):
            before = super().stopped()
            self.stop("SIGINT")  # a signal arrives between two looks
            return before

    turns.coordinator = StopsAfterALook(10)
    turns.run()
    assert turns.log == ["|"]
    assert turns.coordinator.reason == "SIGINT"
