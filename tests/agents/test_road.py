"""From scripted environments through actor and replay to the agent's loss.


The network is Q(s, a) = last frame of s + 10 times the one before it + 1000 a, so that a TD error says which
stack was bootstrapped from: the environment's observations are the numbers of its steps.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import Decision
from gorila_jax.agents import RECIPES
from gorila_jax.networks.memoryless import memoryless
from gorila_jax.replay.memory import MemoryReplay
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import table_spec
from gorila_jax.types import NO_STATE, End, Step
from tests.doubles import CounterEnv, Episode, episode
from tests.reductions.machine import TRANSITIONS

GAMMA = 0.99
NUM_ACTIONS = 2
GREEDY = 1
BONUS = 1000.0  # of the greedy action
NETWORK = memoryless(
    init=lambda key: {"scale": jnp.ones(())},
    apply=lambda parameters, stacks: (
        parameters["scale"] * (stacks.astype(jnp.float32) @ jnp.array([[10.0], [1.0]]))
        + jnp.array([0.0, BONUS])
    ),
)


AGENTS = ("dqn", "gorila", "apex", "drqn", "r2d2")


def decide(parameters, inputs, *rest) -> Decision:
    size = len(inputs.stack)
    zeros, nothing = np.zeros(size, np.float32), np.tile(NO_STATE, (size, 1))
    return Decision(np.full(size, GREEDY, np.int32), zeros, zeros, nothing, nothing)


def abs_td_errors(agent: str, script, num_steps: int, n_steps: int = 1, max_abs_reward: float = 0.0):
    """By the number of the start observation, of every item that `num_steps` greedy steps leave."""
    config = make_config(
        agent,
        "Catch-v0",
        overrides=(TRANSITIONS if agent in ("drqn", "r2d2") else {})
        | {
            "env.num_environments": 1,
            "env.frame_stack": 2,
            "learner.n_steps": n_steps,
            "learner.max_abs_reward": max_abs_reward,
            "replay.samples_per_insert": 0.0,
            "replay.learning_starts_steps": 1,
        },
    )
    recipe = RECIPES[agent]
    environment = CounterEnv([script], GAMMA, num_actions=NUM_ACTIONS, reset_reward=1e6)
    replay = MemoryReplay(table_spec(config, recipe, environment.spec), 1, seed=0)
    writer = replay.writer(0, 1)
    ports = ActorPorts(
        ready=writer.ready,
        pull=lambda: (0, NETWORK.init(None)),
        epsilons=lambda version: np.zeros(1, np.float32),
        count_steps=lambda steps: None,
        report=lambda game: None,
        close=writer.close,
    )
    actor = Actor(
        0,
        environment,
        decide,
        recipe.accumulator(config, writer),
        ports,
        config.env.frame_stack,
        1,
        max_abs_reward,
        jax.random.PRNGKey(0),
    )
    for _ in range(num_steps + 1):  # what a step brought is inserted during the next one
        actor.step(0.0)
    number = replay.status(0).inserted_items
    batch = replay.sampler(0, 50 * number).sample(0.0)
    loss = jax.jit(recipe.loss(config, NETWORK))
    parameters = NETWORK.init(None)
    output = loss(parameters, parameters, Step(*map(jnp.asarray, batch.steps)), batch.state)
    errors = np.asarray(output.abs_td_errors)
    np.testing.assert_allclose(output.priorities, errors, atol=1e-5)
    starts = batch.steps.observation[:, 1]
    by_start = {int(start): float(errors[starts == start][0]) for start in np.unique(starts)}
    assert len(by_start) == number, "an item was missed by fifty times as many draws, or two start alike"
    return by_start


def q(observation: float, first: float = 0) -> float:
    """The best value of an observation of the episode that began with `first`."""
    return observation + 10 * max(observation - 1, first) + BONUS


@pytest.mark.parametrize("agent", AGENTS)
def test_every_target_is_reward_and_discounted_value_of_the_frame_that_followed(agent):
    got = abs_td_errors(agent, [episode(3, reward=2.0)], 4 + 3)
    # Two games, whose observations are 0 to 3 and 4 to 7.
    assert got == pytest.approx(
        {
            0: abs(2.0 + GAMMA * q(1) - q(0)),
            1: abs(2.0 + GAMMA * q(2) - q(1)),
            2: abs(2.0 - q(2)),
            4: abs(2.0 + GAMMA * q(5, 4) - q(4, 4)),
            5: abs(2.0 + GAMMA * q(6, 4) - q(5, 4)),
            6: abs(2.0 - q(6, 4)),
        },
        abs=1e-3,
    )


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_time_limit_differs_from_a_game_over_by_the_value_of_the_last_frame(agent, n_steps):
    over, cut = (
        abs_td_errors(agent, [episode(5, end), episode(5)], 5, n_steps)
        for end in (End.GAME_OVER, End.TIME_LIMIT)
    )
    assert over.keys() == cut.keys() == set(range(5))
    for start in range(5):
        k = min(n_steps, 5 - start)
        error = sum(GAMMA**i for i in range(k)) - q(start)
        after = GAMMA**k * q(min(start + n_steps, 5))
        assert cut[start] == pytest.approx(abs(error + after), abs=2e-3)
        assert over[start] == pytest.approx(abs(error if start + k == 5 else error + after), abs=2e-3)


@pytest.mark.parametrize("agent", AGENTS)
def test_three_step_returns_near_a_time_limit(agent):
    got = abs_td_errors(agent, [episode(5, End.TIME_LIMIT)], 5, n_steps=3)
    returns = [2.9701, 2.9701, 2.9701, 1.99, 1.0]
    discounts = [0.970299, 0.970299, 0.970299, 0.9801, 0.99]
    ends = [3, 4, 5, 5, 5]
    for start in range(5):
        wanted = returns[start] + discounts[start] * q(ends[start]) - q(start)
        assert got[start] == pytest.approx(abs(wanted), abs=2e-3)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_life_loss_and_both_flags_at_once_bootstrap_from_nothing(agent):
    both = Episode((1.0, 1.0), (End.GAME_OVER, End.TIME_LIMIT))
    for script in ([episode(2, End.LIFE_LOSS)], [both]):
        assert abs_td_errors(agent, script, 2)[1] == pytest.approx(q(1) - 1.0, abs=1e-3)


@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_of_the_next_episode_reaches_the_one_before(agent):
    alone = abs_td_errors(agent, [episode(4, End.TIME_LIMIT, 1.0)], 4, n_steps=5)
    followed = abs_td_errors(agent, [episode(4, End.TIME_LIMIT, 1.0), episode(4, reward=100.0)], 9, n_steps=5)
    assert {start: followed[start] for start in alone} == alone


@pytest.mark.parametrize("agent", AGENTS)
def test_each_reward_is_clipped_before_the_sum(agent):
    script = [Episode((10.0, -7.0, 0.5), (End.GAME_OVER,))]
    got = abs_td_errors(agent, script, 3, n_steps=3, max_abs_reward=1.0)
    assert got[0] == pytest.approx(abs(1 - GAMMA + 0.5 * GAMMA**2 - q(0)), abs=1e-3)
