"""Epsilons of the environments of a run, and what is reported with them."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.agents import find_recipe
from gorila_jax.rl.exploration import ladder
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.lockstep import run_lockstep
from tests.runtime.systems import build, config_of


def on_a_ladder():
    """A user's own agent, whose exploration is Ape-X's."""
    return find_recipe("gorila")._replace(
        exploration=lambda config: (
            lambda progress, environment, num_environments: ladder(environment, num_environments)
        )
    )


@pytest.mark.parametrize(("num_actors", "num_environments"), [(8, 1), (2, 4), (1, 8)])
def test_a_ladder_runs_over_all_environments_of_all_actors(num_actors, num_environments):
    config = config_of(**{"actor.num_actors": num_actors, "env.num_environments": num_environments})
    system = build(config, on_a_ladder())
    rungs = np.concatenate(system.epsilons())
    assert rungs == pytest.approx([0.4 ** (1 + i) for i in range(8)])
    assert rungs == pytest.approx([0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655], rel=1e-3)


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


def test_a_resumed_actor_is_told_the_epsilon_of_the_run_before_it_holds_parameters():
    config = config_of(**{"actor.epsilon_decay_updates": 100})
    coordinator = Coordinator(600)
    system = build(config, coordinator=coordinator)
    run_lockstep(system, coordinator, lambda: None)
    resumed = build(config, generation=1)
    assert resumed.epsilons()[0] == pytest.approx(1.0)
    resumed.restore(system.state())
    assert resumed.epsilons()[0] == pytest.approx(config.actor.epsilon_final)
