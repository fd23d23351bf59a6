"""From scripted environments through a real recurrent network to the items of r2d2 and back to its loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import make_policy
from gorila_jax.agents import RECIPES
from gorila_jax.replay.memory import MemoryReplay
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import state_size, table_spec
from gorila_jax.types import End, Inputs, Step
from tests.doubles import CounterEnv, Recorder, episode

OVERRIDES = {
    "env.num_environments": 2,
    "env.frame_stack": 2,
    "network.hidden_units": (6,),
    "network.core_units": 5,
    "sequence.length_steps": 4,
    "sequence.overlap_steps": 2,
    "sequence.burn_in_steps": 3,
    "learner.n_steps": 2,
    "replay.samples_per_insert": 0.0,
    "replay.learning_starts_steps": 2,
}
SCRIPTS = [
    [episode(13), episode(18, End.TIME_LIMIT), episode(5)],
    [episode(20, End.TIME_LIMIT), episode(2), episode(9)],
]
NUM_STEPS = 60


class Road:
    """An actor that has acted for a while with one set of parameters, and where its items went."""

    def __init__(self, agent="r2d2", replay=None, **overrides):
        self.config = make_config(agent, "Catch-v0", overrides=OVERRIDES | overrides)
        self.recipe = RECIPES[agent]
        self.environment = CounterEnv(
            SCRIPTS, 0.9, observation_shape=(3,), observation_dtype=np.float32, reset_reward=1e6
        )
        self.network = self.recipe.network(self.config, self.environment.spec)
        # Observations are numbers up to some sixty, and the first one is 0: nothing of it may be lost.
        self.parameters = jax.tree_util.tree_map(
            lambda leaf: 0.3 * leaf + 0.05, self.network.init(jax.random.PRNGKey(4))
        )
        self.table = table_spec(self.config, self.recipe, self.environment.spec)
        self.recorder = Recorder(len(SCRIPTS), self.table.window_steps)
        writer = self.recorder if replay is None else replay(self.table).writer(0, len(SCRIPTS))
        ports = ActorPorts(
            ready=writer.ready,
            pull=lambda: (0, self.parameters),
            epsilons=lambda version: np.full(len(SCRIPTS), 0.5, np.float32),
            count_steps=lambda steps: None,
            report=lambda game: None,
            close=writer.close,
        )
        actor = Actor(
            0,
            self.environment,
            make_policy(self.network),
            self.recipe.accumulator(self.config, writer),
            ports,
            self.config.env.frame_stack,
            10,
            self.config.learner.max_abs_reward,
            jax.random.PRNGKey(5),
            state_size(self.network),
        )
        for _ in range(NUM_STEPS):
            assert actor.step(0.0)

    def states(self, stream: int) -> dict[float, np.ndarray]:
        """The state before every observation of one environment, by its number: computed from the episode's
        start in one unroll, with the actions that were recorded."""
        rows = self.recorder.rows[stream]
        first = [i for i, row in enumerate(rows) if i == 0 or i in self.recorder.cuts[stream]]
        states = {}
        for begin, end in zip(first, [*first[1:], len(rows)], strict=True):
            state = self.network.initial_state(self.parameters, 1)
            own = rows[begin:end]
            starts = [row for row in own if not row.valid and row.observation[0] == own[0].observation[0]]
            previous = own[0].observation
            for row in [starts[-1], *(row for row in own if row.valid)]:
                states[float(row.observation[0])] = np.asarray(state)[0]
                stack = np.stack([previous, row.observation])
                inputs = Inputs(
                    jnp.asarray(stack)[None],
                    jnp.asarray(row.action)[None],
                    jnp.asarray(row.reward)[None],
                    jnp.asarray([not row.valid]),
                )
                _, state = self.network.step(self.parameters, inputs, state)
                previous = row.observation
        return states


@pytest.fixture(scope="module")
def road():
    return Road()


def test_stored_states_are_those_of_an_unroll_from_the_episode_s_start(road):
    states = [road.states(stream) for stream in range(len(SCRIPTS))]
    assert len(road.recorder.items) > 30
    later = 0
    for item in road.recorder.items:
        assert item.state.shape == (2 * 5,)
        number = float(item.steps.observation[road.config.env.frame_stack - 1, 0])
        np.testing.assert_allclose(item.state, states[item.stream][number], rtol=2**-11, atol=1e-5)
        later += bool(np.any(item.state))
        begins = not item.steps.valid[: road.config.env.frame_stack].any()
        assert begins == (not np.any(item.state)), "the initial state and no other is zero"
    assert later > 10


def test_the_actor_s_priorities_are_those_that_the_learner_gives_with_the_same_parameters(road):
    items = road.recorder.items
    steps = Step(*(jnp.stack(field) for field in zip(*(item.steps for item in items), strict=True)))
    state = jnp.stack([item.state for item in items]).astype(jnp.float32)
    loss = jax.jit(road.recipe.loss(road.config, road.network))
    output = loss(road.parameters, road.parameters, steps, state)
    np.testing.assert_allclose(output.priorities, [item.priority for item in items], rtol=2e-3, atol=1e-5)


def test_values_from_stored_states_are_those_of_the_whole_episode_and_from_zero_they_are_not(road):
    """With the parameters of acting, burn-in from a stored state changes nothing; from zero it does."""
    items = [item for item in road.recorder.items if np.any(item.state)]
    steps = Step(*(jnp.stack(field) for field in zip(*(item.steps for item in items), strict=True)))
    state = jnp.stack([item.state for item in items]).astype(jnp.float32)
    loss = jax.jit(road.recipe.loss(road.config, road.network))
    stored, zero = (
        loss(road.parameters, road.parameters, steps, start).priorities for start in (state, 0 * state)
    )
    priorities = np.array([item.priority for item in items])
    assert np.abs(stored - priorities).max() < 0.1 * np.abs(zero - priorities).max()


def test_batches_have_the_states_of_their_items():
    replays = []

    def replay(table):
        replays.append(MemoryReplay(table, 1, seed=0))
        return replays[0]

    Road(replay=replay)
    batch = replays[0].sampler(0, 32).sample(0.0)
    assert batch.state.shape == (32, 10)
    begins = ~batch.steps.valid[:, :2].any(axis=1)
    assert 0 < begins.sum() < 32
    np.testing.assert_array_equal(begins, ~batch.state.any(axis=1))


def test_drqn_begins_at_every_step_from_zero():
    road = Road("drqn", **{"sequence.overlap_steps": 3, "sequence.burn_in_steps": 0, "learner.n_steps": 1})
    assert all(item.state.shape == (0,) for item in road.recorder.items)
    first = [float(item.steps.observation[1, 0]) for item in road.recorder.items if item.stream == 0]
    assert first[:10] == list(range(10))  # of the episode of 13 steps
