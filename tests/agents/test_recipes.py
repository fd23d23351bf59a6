"""Agents by name and by import path, and how each one explores."""

from __future__ import annotations

import re

import pytest

from gorila_jax.agents import RECIPES, find_recipe
from gorila_jax.agents.recipe import Elapsed
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import ConfigError

USERS_OWN = """
from gorila_jax.agents import dqn
from gorila_jax.agents.recipe import Setting

TOY = {**dqn.TOY, "learner.batch_size": Setting(24, "a whim")}
recipe = dqn.recipe._replace(name="mine", presets={"toy": TOY})
not_a_recipe = dqn
"""


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    (tmp_path / "my_agents.py").write_text(USERS_OWN)
    (tmp_path / "my_broken_agents.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_user_s_agent_is_found_by_its_import_path_with_its_own_presets(users_module):
    config = make_config("my_agents:recipe", "Catch-v0")
    assert find_recipe(config.agent).name == "mine"
    assert (config.preset, config.learner.batch_size) == ("toy", 24)
    with pytest.raises(ConfigError, match="mine has no preset 'paper'; possible: toy"):
        make_config("my_agents:recipe", "Catch-v0", "paper")
    with pytest.raises(ConfigError, match=r"actor\.num_actors is 2"):  # its validate is asked too
        make_config("my_agents:recipe", "Catch-v0", overrides={"actor.num_actors": 2})


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("my_agents:nothing", "nothing"),
        ("my_agents:not_a_recipe", "is a module, not a gorila_jax.agents.recipe.Recipe"),
        ("my_broken_agents:recipe", "a_package_that_is_not_there"),
        ("no_such_module:recipe", "no_such_module"),
        ("my_agents:", "cannot be imported"),
        (":recipe", "cannot be imported"),
        ("gorilla", "did you mean gorila?"),
        ("", "possible: dqn, gorila, apex"),
    ],
)
def test_what_is_no_agent_is_refused_with_the_reason(users_module, path, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        find_recipe(path)


def exploration(agent: str):
    config = make_config(
        agent,
        "Catch-v0",
        overrides={
            "actor.epsilon_initial": 1.0,
            "actor.epsilon_final": 0.2,
            "actor.epsilon_decay_steps": 1000,
            "actor.epsilon_decay_updates": 100,
        },
    )
    return RECIPES[agent].exploration(config)


@pytest.mark.parametrize(("agent", "counts"), [("dqn", "steps"), ("gorila", "updates")])
def test_epsilon_falls_over_the_agent_s_own_count_and_over_no_other(agent, counts):
    epsilon, full = exploration(agent), {"steps": 1000, "updates": 100}[counts]
    still = Elapsed(0, 0)
    for share, value in ((0.0, 1.0), (0.25, 1 - 0.8 * 0.25), (0.5, 0.6), (1.0, 0.2), (7.0, 0.2)):
        assert epsilon(still._replace(**{counts: int(share * full)}), 0, 1) == pytest.approx(value)
    other = {"steps": "updates", "updates": "steps"}[counts]
    assert epsilon(still._replace(**{other: 10**9}), 0, 1) == 1.0


@pytest.mark.parametrize("agent", ["dqn", "gorila"])
def test_epsilon_is_the_same_in_every_environment(agent):
    epsilon = exploration(agent)
    assert len({epsilon(Elapsed(500, 50), environment, 8) for environment in range(8)}) == 1


def test_dqn_has_one_of_everything():
    for path in ("actor.num_actors", "learner.num_learners", "parameter_server.num_shards"):
        with pytest.raises(ConfigError, match=rf"{re.escape(path)} is 2.*--agent=gorila"):
            make_config("dqn", "Catch-v0", overrides={path: 2})
        make_config("gorila", "Catch-v0", overrides={path: 2})


def test_apex_gives_every_environment_of_all_actors_a_step_of_the_ladder():
    epsilon = RECIPES["apex"].exploration(make_config("apex", "Catch-v0"))
    ladder = [epsilon(Elapsed(10**9, 10**9), environment, 8) for environment in range(8)]
    assert ladder == pytest.approx(
        [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536], rel=1e-9
    )
    assert epsilon(Elapsed(0, 0), 0, 1) == 0.4
