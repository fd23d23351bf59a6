"""Every preset of every agent can be started as it stands."""

from __future__ import annotations

import re

import jax
import pytest

from gorila_jax.agents import RECIPES
from gorila_jax.agents.recipe import Elapsed
from gorila_jax.config import Config, fields, get, override
from gorila_jax.environments import environment_spec
from gorila_jax.parameter_server import make_optimizer
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import table_spec
from gorila_jax.runtime.topology import make_topology

PRESETS = [(agent, preset) for agent, recipe in RECIPES.items() for preset in recipe.presets]
FREE_RATIO = [("gorila", "paper")]  # as in the paper: nothing holds samples per insert


@pytest.mark.parametrize("agent", RECIPES)
def test_every_agent_has_the_three_presets_under_its_own_name(agent):
    assert set(RECIPES[agent].presets) == {"paper", "small", "toy"}
    assert RECIPES[agent].name == agent


@pytest.mark.parametrize("environment", ["Pong-v5", "Catch-v0"])
@pytest.mark.parametrize(("agent", "preset"), PRESETS)
def test_it_applies_and_all_that_is_made_of_it_can_be_made(agent, preset, environment):
    config = make_config(agent, environment, preset)  # validates
    recipe, spec = RECIPES[agent], environment_spec(environment, config.env)
    for path, setting in recipe.presets[preset].items():
        elsewhere = path == "env.life_loss_is_end" and environment == "Catch-v0"  # Atari's alone
        assert get(config, path) == (get(Config(), path) if elsewhere else setting.value)
    table = table_spec(config, recipe, spec)
    sequence = config.sequence
    assert table.window_steps == (
        config.env.frame_stack - 1 + sequence.burn_in_steps + sequence.length_steps + config.learner.n_steps
    )
    network = recipe.network(config, spec)
    parameters = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    stacks = jax.ShapeDtypeStruct(
        (3, config.env.frame_stack, *spec.observation_shape), spec.observation_dtype
    )
    assert jax.eval_shape(network.apply, parameters, stacks).shape == (3, spec.num_actions)
    many = config.learner.num_learners > 1 or config.parameter_server.num_shards > 1
    make_optimizer(config.parameter_server, sharded=many)
    placed = make_topology(config, jax.local_devices())
    assert len(placed.actor_tables) == config.actor.num_actors


@pytest.mark.parametrize(("agent", "preset"), PRESETS)
def test_every_number_says_where_it_comes_from(agent, preset):
    for path, setting in RECIPES[agent].presets[preset].items():
        assert path in fields()
        assert len(setting.source.strip()) > 3, path


@pytest.mark.parametrize(("agent", "preset"), PRESETS)
def test_an_agent_explores_by_every_epsilon_that_its_preset_names(agent, preset):
    config, recipe = make_config(agent, "Catch-v0", preset), RECIPES[agent]

    def explored(config):
        epsilon = recipe.exploration(config)
        return [epsilon(Elapsed(n, n), e, 8) for n in (0, 1_000, 10**9) for e in range(8)]

    for path in recipe.presets[preset]:
        if path.startswith("actor.epsilon"):
            value = get(config, path)
            assert explored(override(config, {path: type(value)(value / 2)})) != explored(config), path


@pytest.mark.parametrize(("agent", "preset"), PRESETS)
def test_samples_per_insert_is_held(agent, preset):
    config = make_config(agent, "Pong-v5", preset)
    assert (config.replay.samples_per_insert == 0) == ((agent, preset) in FREE_RATIO)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("parameter_server.target_period_updates", "updates"),
        ("parameter_server.max_staleness_updates", "gradients of parameters older"),
        ("actor.parameter_period_steps", "steps of an actor"),
        ("actor.epsilon_decay_steps", "environment steps"),
        ("actor.epsilon_decay_updates", "updates"),
        ("env.max_frames_per_episode", "frames"),
        ("env.max_steps_per_episode", "steps"),
        ("replay.capacity_steps", "steps"),
        ("replay.learning_starts_steps", "steps"),
        ("run.total_frames", "frames of all actors"),
        ("checkpoint.period_seconds", "seconds"),
    ],
)
def test_the_help_of_a_count_names_its_unit(path, unit):
    assert unit in fields()[path].meaning


def test_every_whole_number_that_counts_or_times_something_has_its_unit_in_its_name():
    named = re.compile(r"_(frames|steps|updates|items|transitions|samples|seconds|losses|batches|units)(_|$)")
    other = re.compile(r"num_|_size|seed|port|keep|frame_stack|frame_skip|noop_max|devices|threads|niceness")
    counts = [path for path, field in fields().items() if field.type is int]
    assert [path for path in counts if not named.search(path) and not other.search(path)] == []
