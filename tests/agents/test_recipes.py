"""Agents by name and by import path, and how each one explores."""

from __future__ import annotations

import re

import pytest

from gorila_jax.agents import RECIPES, find_recipe
from gorila_jax.agents.recipe import Elapsed
from gorila_jax.environments import environment_spec
from gorila_jax.rl.windows import Layout
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import make_plan, table_spec
from gorila_jax.types import ConfigError
from tests.evaluation.runs import first_number

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
        ("", "possible: dqn, gorila, apex, drqn, r2d2"),
    ],
)
def test_what_is_no_agent_is_refused_with_the_reason(users_module, path, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        find_recipe(path)


def exploration(agent: str):
    unit, full = {"dqn": ("steps", 1000), "gorila": ("updates", 100)}[agent]
    config = make_config(
        agent,
        "Catch-v0",
        overrides={
            "actor.epsilon_initial": 1.0,
            "actor.epsilon_final": 0.2,
            f"actor.epsilon_decay_{unit}": full,
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


@pytest.mark.parametrize(
    ("agents", "path", "value"),
    [
        (("dqn", "gorila", "drqn"), "actor.epsilon_base", 0.5),
        (("dqn", "gorila", "drqn"), "actor.epsilon_alpha", 3.0),
        (("apex", "r2d2"), "actor.epsilon_initial", 0.5),
        (("apex", "r2d2"), "actor.epsilon_final", 0.01),
        (("apex", "r2d2", "gorila"), "actor.epsilon_decay_steps", 10),
        (("apex", "r2d2", "dqn", "drqn"), "actor.epsilon_decay_updates", 10),
    ],
)
def test_settings_of_another_exploration_are_refused(agents, path, value):
    for agent in RECIPES:
        if agent in agents:
            message = rf"{re.escape(path)} is {value}, but {agent} .*: actor\.epsilon"
            with pytest.raises(ConfigError, match=message):
                make_config(agent, "Catch-v0", overrides={path: value})
        else:
            make_config(agent, "Catch-v0", overrides={path: value})


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


@pytest.mark.parametrize("agent", ["dqn", "gorila", "apex"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("network.core", "lstm"),
        ("network.core_units", 64),
        ("network.last_action_and_reward", True),
        ("learner.rescaling_epsilon", 1e-3),
        ("sequence.length_steps", 80),
        ("sequence.burn_in_steps", 40),
        ("sequence.start_state", "zero"),
        ("sequence.priority_eta", 0.5),
    ],
)
def test_agents_without_a_memory_refuse_what_only_sequences_have(agent, path, value):
    message = rf"{re.escape(path)} is {value}, but {agent} learns from single transitions .*--agent=r2d2"
    with pytest.raises(ConfigError, match=message):
        make_config(agent, "Catch-v0", overrides={path: value})
    make_config("r2d2", "Catch-v0", overrides={path: value})


def test_r2d2_has_one_learner_and_drqn_one_of_everything():
    for path, value in (("learner.num_learners", 2), ("replay.layout", "local")):
        with pytest.raises(ConfigError, match=rf"{re.escape(path)} is {value}, but r2d2 has one"):
            make_config("r2d2", "Catch-v0", overrides={path: value})
    with pytest.raises(ConfigError, match=r"num_actors is 2, but drqn has one of them"):
        make_config("drqn", "Catch-v0", overrides={"actor.num_actors": 2})
    make_config("r2d2", "Catch-v0", overrides={"actor.num_actors": 2})


@pytest.mark.parametrize("agent", ["drqn", "r2d2"])
def test_a_burn_in_of_nothing_is_refused(agent):
    with pytest.raises(ConfigError, match=r"burn_in_steps is 7, but network\.core=none has no state"):
        make_config(agent, "Catch-v0", overrides={"network.core": "none", "sequence.burn_in_steps": 7})


def test_what_the_papers_say_of_sequences():
    """R2D2 has n = 5 and a prioritized table; its items overlap by half; DRQN's begin at every step."""
    r2d2, drqn = (make_config(agent, "Pong-v5", "paper") for agent in ("r2d2", "drqn"))
    assert (r2d2.learner.n_steps, r2d2.replay.priority_exponent, r2d2.sequence.priority_eta) == (5, 0.9, 0.9)
    assert RECIPES["r2d2"].layout(r2d2) == Layout(4, 40, 80, 40, 5, stores_state=True)
    assert RECIPES["drqn"].layout(drqn) == Layout(1, 0, 10, 1, 1, stores_state=False)
    assert (r2d2.learner.max_abs_reward, r2d2.env.life_loss_is_end) == (0.0, False)


def test_a_table_of_sequences_counts_what_the_configuration_says_in_steps():
    config = make_config("r2d2", "Pong-v5", "paper", {"actor.num_actors": 1})
    spec = environment_spec("Pong-v5", config.env)
    table = table_spec(config, RECIPES["r2d2"], spec)
    assert table.capacity_items == 100_000
    assert table.min_items == 5_000
    assert table.samples_per_insert == pytest.approx(1.18 / 2)
    assert table.state_size == 2 * 512
    assert table.window_steps == 3 + 40 + 80 + 5
    drqn = make_config("drqn", "Pong-v5", "paper")
    table = table_spec(drqn, RECIPES["drqn"], environment_spec("Pong-v5", drqn.env))
    assert (table.capacity_items, table.state_size) == (1_000_000, 0)
    assert table.samples_per_insert == pytest.approx(8.0)  # an update of 32 every 4 steps


def test_a_replay_of_sequences_is_planned_in_steps():
    """The paper's four million frames; a stride that went missing would make them a fortieth."""
    plan = make_plan(
        make_config("r2d2", "Pong-v5", "paper", {"actor.num_actors": 1, "replay.backend": "memory"})
    )
    frames = 4_000_000 * 84 * 84
    assert frames < plan.replay_bytes < 1.2 * frames
    (line,) = (line for line in plan.lines if line.startswith("replay: "))
    assert "1 x 4,000,000 steps = 100,000 sequences, about 30" in line
    assert "up to 0.9 MB more for each episode in it" in line  # 4 + 40 + 80 + 4 rows of padding


def test_a_network_that_remembers_wants_items_to_learn_it_from():
    remembering = RECIPES["gorila"]._replace(network=first_number.network)
    with pytest.raises(
        ConfigError, match="the network of gorila has a recurrent state, but its replay items"
    ):
        make_plan(make_config("gorila", "Catch-v0"), remembering)


def test_an_error_buffer_is_told_in_the_steps_that_it_is_set_in():
    config = make_config("r2d2", "Catch-v0", overrides={"replay.error_buffer_samples": 50})
    with pytest.raises(ConfigError, match=r"buffer of 50 samples .* batches of 320 samples: .* works is 200"):
        make_plan(config)
