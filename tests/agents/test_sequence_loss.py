"""The loss of the recurrent agents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.agents import RECIPES
from gorila_jax.rl.rescaling import rescaling
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import EnvironmentSpec, Step

B, ACTIONS, SHAPE = 4, 3, (2,)
SPEC = EnvironmentSpec("Test", SHAPE, np.dtype(np.float32), ACTIONS, 1, {})
SMALL = {
    "env.frame_stack": 2,
    "network.hidden_units": (8,),
    "network.core_units": 5,
    "sequence.length_steps": 4,
    "sequence.overlap_steps": 2,
    "sequence.burn_in_steps": 3,
    "learner.n_steps": 2,
}


class Case:
    """One agent's loss and a batch for it: whole sequences unless told how many rows are real."""

    def __init__(self, agent="r2d2", **overrides):
        self.config = make_config(agent, "Catch-v0", overrides=SMALL | overrides)
        recipe = RECIPES[agent]
        self.layout = recipe.layout(self.config)
        self.network = recipe.network(self.config, SPEC)
        self.loss = jax.jit(recipe.loss(self.config, self.network))
        self.parameters, self.target = (self.network.init(jax.random.PRNGKey(seed)) for seed in (0, 1))
        units = self.config.network.core_units if self.config.network.core == "lstm" else 0
        self.state = jax.random.normal(jax.random.PRNGKey(2), (B, 2 * units))

    def steps(self, seed=0, before=0, behind=0) -> Step:
        """Rows [B, W], of which so many come before an episode's first step and behind its last one."""
        random, window = np.random.default_rng(seed), self.layout.window_steps
        valid = np.ones((B, window), bool)
        valid[:, :before] = False
        valid[:, window - behind :] = False
        observation = random.normal(size=(B, window, *SHAPE)).astype(np.float32)
        if before:
            observation[:, :before] = observation[:, before - 1 : before]
        return Step(
            observation=observation,
            action=np.where(valid, random.integers(ACTIONS, size=(B, window)), 0).astype(np.int32),
            reward=np.where(valid, random.normal(size=(B, window)), 0).astype(np.float32),
            discount=np.where(valid, 0.9, 1).astype(np.float32),
            valid=valid,
        )

    def __call__(self, steps, parameters=None, state=None):
        state = self.state if state is None else state
        return self.loss(self.parameters if parameters is None else parameters, self.target, steps, state)

    def gradient(self, steps, with_respect_to=0):
        arguments = [self.parameters, self.target, steps, self.state]

        def total(argument):
            arguments[with_respect_to] = argument
            return jnp.sum(self.loss(*arguments).losses)

        return jax.grad(total)(arguments[with_respect_to])


def leaves(tree):
    return jax.tree_util.tree_leaves(tree)


DRQN = {"network.hidden_units": (), "sequence.burn_in_steps": 0, "learner.n_steps": 1}
"""What its own presets say, beside an LSTM in place of the dense layer."""


@pytest.mark.parametrize(
    ("agent", "overrides"),
    [
        ("r2d2", {}),
        ("r2d2", {"learner.double_q": False}),
        ("r2d2", {"sequence.burn_in_steps": 0}),
        ("r2d2", {"sequence.burn_in_steps": 20}),
        ("r2d2", {"sequence.start_state": "zero"}),
        ("drqn", DRQN),
        ("drqn", {}),
    ],
)
def test_losses_and_priorities_step_by_step(agent, overrides):
    case = Case(agent, **overrides)
    steps, config = case.steps(), case.config
    if agent == "drqn":
        steps = steps._replace(reward=2 * steps.reward)
    output, clipped = case(steps), []
    for b in range(B):
        errors = errors_by_hand(case, steps, b, case.parameters)
        magnitudes, losses = np.abs(errors), 0.5 * np.square(errors)
        if agent == "drqn":
            clipped += (magnitudes > 1).tolist()
            losses = np.where(magnitudes > 1, magnitudes - 0.5, losses)
        length = config.sequence.length_steps
        assert output.losses[b] == pytest.approx(losses.sum() / length, rel=1e-4)
        assert output.abs_td_errors[b] == pytest.approx(magnitudes.mean(), rel=1e-4)
        assert output.priorities[b] == pytest.approx(
            0.9 * magnitudes.max() + 0.1 * magnitudes.mean(), rel=1e-4
        )
    assert len(set(clipped)) == (2 if agent == "drqn" else 0)  # some errors are, and some are not


@pytest.mark.parametrize("overrides", [{}, {"sequence.burn_in_steps": 0}])
def test_the_gradient_runs_through_all_trained_steps_and_nothing_else(overrides):
    case = Case(**overrides)
    steps, length = case.steps(), case.config.sequence.length_steps

    def total(parameters):
        errors = [errors_by_hand(case, steps, b, parameters) for b in range(B)]
        return 0.5 * jnp.sum(jnp.square(jnp.stack(errors))) / length

    expected = jax.grad(total)(case.parameters)
    for got, wanted in zip(leaves(case.gradient(steps)), leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def errors_by_hand(case, steps, b, parameters):
    """TD errors [T] of one sequence, one network call per observation, from burn-in to the last bootstrap.

    Targets are constants, and so is the state that burn-in leads to.
    """
    config = case.config
    pair = rescaling(config.learner.rescaling_epsilon)
    stack, burn_in = config.env.frame_stack, config.sequence.burn_in_steps
    length, n = config.sequence.length_steps, config.learner.n_steps
    values = {}
    for name, its_parameters in (("online", parameters), ("target", case.target)):
        state, values[name] = case.state[b : b + 1], []
        if config.sequence.start_state == "zero":
            state = jnp.zeros_like(state)
        for t, row in enumerate(range(stack - 1, case.layout.window_steps)):
            if t == burn_in:
                state = jax.lax.stop_gradient(state)
            seen = jnp.asarray(steps.observation[b, row - stack + 1 : row + 1]).reshape(1, -1)
            if config.network.last_action_and_reward:
                last = jax.nn.one_hot(steps.action[b, row], ACTIONS)
                seen = jnp.concatenate([seen, last[None], steps.reward[b, row].reshape(1, 1)], axis=-1)
            q, state = by_hand(its_parameters, seen, state)
            values[name].append(q[0])
    errors = []
    for t in range(burn_in, burn_in + length):
        row = stack + t  # of the step taken at observation t
        best = jnp.argmax(values["online" if config.learner.double_q else "target"][t + n])
        target = pair.invert(values["target"][t + n][best])
        for k in reversed(range(n)):
            target = steps.reward[b, row + k] + steps.discount[b, row + k] * target
        errors.append(jax.lax.stop_gradient(pair.apply(target)) - values["online"][t][steps.action[b, row]])
    return jnp.stack(errors)


def by_hand(parameters, seen, state):
    """One step of an LSTM with one or two heads above it."""
    lstm = parameters["lstm"]
    hidden, cell = jnp.split(state, 2, axis=-1)
    gates = jnp.concatenate([seen, hidden], axis=-1) @ lstm["w"] + lstm["b"]
    input_gate, candidate, forget_gate, output_gate = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget_gate + 1) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
    state, heads = jnp.concatenate([hidden, cell], axis=-1), []
    for name in ("value_", "advantage_") if "value_head" in parameters else ("",):
        head, features = parameters[name + "head"], hidden
        if (dense := parameters.get(name + "hidden_0")) is not None:
            features = jax.nn.relu(hidden @ dense["w"] + dense["b"])
        heads.append(features @ head["w"] + head["b"])
    *value, advantage = heads
    return value[0] + advantage - advantage.mean(-1, keepdims=True) if value else advantage, state


def test_no_gradient_flows_through_burn_in_into_the_start_state_or_the_target():
    case = Case()
    steps = case.steps()
    assert all(np.abs(leaf).max() > 0 for leaf in leaves(case.gradient(steps)))
    assert not np.any(case.gradient(steps, with_respect_to=3))
    assert all(not np.any(leaf) for leaf in leaves(case.gradient(steps, with_respect_to=1)))
    observation = jax.grad(lambda x: jnp.sum(case(steps._replace(observation=x)).losses))(
        jnp.asarray(steps.observation)
    )
    # The last burn-in observation is in the stack of the first trained one; those before it are not.
    only_burn_in = case.layout.frame_stack - 1 + case.layout.burn_in_steps - 1
    assert not np.any(observation[:, :only_burn_in])
    assert np.abs(observation[:, only_burn_in + 1]).max() > 0


def test_burn_in_and_the_stored_state_reach_the_values():
    case = Case()
    steps = case.steps()
    other = steps._replace(observation=steps.observation.copy())
    other.observation[:, 0] += 1
    for changed in (case(other), case(steps, state=case.state + 1)):
        assert not np.allclose(changed.losses, case(steps).losses)


@pytest.mark.parametrize("behind", [1, 3, 4])
def test_padding_behind_an_episode_changes_no_bit(behind):
    case = Case()
    steps = case.steps(behind=behind)
    filled = Step(*(field.copy() for field in steps))
    random, padded = np.random.default_rng(9), ~steps.valid
    filled.observation[padded] = random.normal(size=(padded.sum(), *SHAPE))
    filled.action[padded] = random.integers(ACTIONS, size=padded.sum())
    filled.reward[padded] = 1e9
    filled.discount[padded] = 7.0
    for clean, dirty in zip(case(steps), case(filled), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    for clean, dirty in zip(leaves(case.gradient(steps)), leaves(case.gradient(filled)), strict=True):
        np.testing.assert_array_equal(clean, dirty)


def test_padding_before_an_episode_changes_no_bit_and_neither_does_the_stored_state():
    case = Case()
    before = case.layout.frame_stack + case.layout.burn_in_steps
    steps = case.steps(before=before)
    filled = Step(*(field.copy() for field in steps))
    stack = slice(
        case.layout.burn_in_steps, before
    )  # of the first observation: what comes before is not seen
    random = np.random.default_rng(9)
    filled.observation[:, : stack.start] = random.normal(size=filled.observation[:, : stack.start].shape)
    filled.action[:, : stack.start] = 1
    filled.reward[:, : stack.start] = 1e9
    filled.discount[:, : stack.start] = 7.0
    for clean, dirty in zip(case(steps), case(filled, state=case.state + 3), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    for clean, dirty in zip(leaves(case.gradient(steps)), leaves(case.gradient(filled)), strict=True):
        np.testing.assert_array_equal(clean, dirty)


def test_the_last_step_of_an_episode_counts():
    """It alone is trained here, and ends the game: its target is its reward, which no other step has."""
    case = Case(**{"learner.n_steps": 1})
    steps = case.steps(behind=case.config.sequence.length_steps - 1)
    last = case.layout.frame_stack + case.layout.burn_in_steps
    assert steps.valid[:, last].all()
    assert not steps.valid[:, last + 1 :].any()
    steps.discount[:, last] = 0
    output = case(steps)
    assert np.all(output.losses > 0)
    steps.reward[:, last] += 100
    assert np.all(case(steps).losses > 5 * output.losses)


def test_a_batch_of_padding_alone_is_no_nan():
    case = Case()
    steps = case.steps(behind=case.layout.window_steps)
    output = case(steps)
    assert output.losses.tolist() == [0.0] * B
    assert all(np.isfinite(leaf).all() for leaf in leaves(case.gradient(steps)))


def test_from_zero_the_stored_state_means_nothing():
    case = Case(**{"sequence.start_state": "zero"})
    steps = case.steps()
    np.testing.assert_array_equal(case(steps).losses, case(steps, state=case.state[:, :0]).losses)
    zero = case(steps).losses
    np.testing.assert_allclose(zero, Case()(steps, state=0 * case.state).losses, rtol=1e-6)
    assert not np.allclose(zero, Case()(steps).losses)


def test_a_network_s_own_initial_state_is_respected():
    case = Case(**{"sequence.start_state": "zero"})
    own = case.network._replace(initial_state=lambda parameters, size: jnp.ones((size, 10)))
    loss = RECIPES["r2d2"].loss(case.config, own)
    steps = case.steps()
    expected = Case()(steps, state=jnp.ones((B, 10))).losses
    np.testing.assert_allclose(
        loss(case.parameters, case.target, steps, case.state[:, :0]).losses, expected, rtol=1e-5
    )


def test_drqn_s_lstm_is_in_place_of_the_dense_layer():
    own = make_config("drqn", "Pong-v5", "paper")
    assert own.network.hidden_units == ()
    assert set(Case("drqn", **DRQN).parameters) == {"lstm", "head"}
