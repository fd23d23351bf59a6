"""The recurrent core, and networks that have one."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.config import NetworkConfig
from gorila_jax.networks.build import build_network
from gorila_jax.networks.lstm import LSTM
from gorila_jax.types import EnvironmentSpec, Inputs

T, B, F, UNITS, ACTIONS = 7, 3, 5, 4, 3
SPEC = EnvironmentSpec("Test", (F,), np.dtype(np.float32), ACTIONS, 1, {})
CONFIG = NetworkConfig(
    hidden_units=(6,), dueling=True, core="lstm", core_units=UNITS, last_action_and_reward=True
)


def random_inputs(seed: int = 0, first=()) -> Inputs:
    """[T, B, ...]; episodes begin at the places (t, b) named."""
    random = np.random.default_rng(seed)
    begins = np.zeros((T, B), bool)
    for place in first:
        begins[place] = True
    return Inputs(
        stack=jnp.asarray(random.normal(size=(T, B, 1, F)), jnp.float32),
        last_action=jnp.asarray(random.integers(ACTIONS, size=(T, B)), jnp.int32),
        last_reward=jnp.asarray(random.normal(size=(T, B)), jnp.float32),
        first=jnp.asarray(begins),
    )


def made(config: NetworkConfig = CONFIG):
    network = build_network(config, SPEC, 1)
    return network, network.init(jax.random.PRNGKey(1))


def random_state(seed: int = 3) -> jax.Array:
    return jax.random.normal(jax.random.PRNGKey(seed), (B, 2 * UNITS))


def test_it_is_haiku_s_lstm():
    ours = hk.without_apply_rng(hk.transform(lambda *x: LSTM(UNITS, name="lstm")(*x)))

    def haiku_s(inputs, hidden, cell):
        return hk.dynamic_unroll(hk.LSTM(UNITS, name="lstm"), inputs, hk.LSTMState(hidden, cell))

    theirs = hk.without_apply_rng(hk.transform(haiku_s))
    inputs = jax.random.normal(jax.random.PRNGKey(0), (T, B, F))
    hidden, cell = jnp.split(random_state(), 2, axis=-1)
    parameters = theirs.init(jax.random.PRNGKey(1), inputs, hidden, cell)
    expected, (last_hidden, last_cell) = theirs.apply(parameters, inputs, hidden, cell)

    first = jnp.zeros((T, B), bool)
    own = ours.init(jax.random.PRNGKey(1), inputs, first, random_state())
    (linear,) = parameters.values()
    assert {name: leaf.shape for name, leaf in own["lstm"].items()} == {
        name: leaf.shape for name, leaf in linear.items()
    }
    got, state = ours.apply({"lstm": linear}, inputs, first, random_state())
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(state, jnp.concatenate([last_hidden, last_cell], axis=-1), atol=1e-6)
    # The weights begin as widely spread as Haiku's.
    big = ours.init(jax.random.PRNGKey(2), jnp.zeros((1, 1, 300)), first[:1, :1], random_state()[:1])
    assert np.std(big["lstm"]["w"]) == pytest.approx(0.88 * (300 + UNITS) ** -0.5, rel=0.05)


@pytest.mark.parametrize("first", [(), [(0, 0), (3, 1), (4, 2)]])
def test_steps_are_the_unroll(first):
    network, parameters = made()
    inputs, state = random_inputs(first=first), random_state()
    values, last = network.unroll(parameters, inputs, state)
    assert values.shape == (T, B, ACTIONS)
    for t in range(T):
        got, state = network.step(parameters, Inputs(*(field[t] for field in inputs)), state)
        np.testing.assert_allclose(got, values[t], atol=1e-6)
    np.testing.assert_allclose(state, last, atol=1e-6)


def test_an_episode_that_begins_inside_is_two_unrolls():
    network, parameters = made()
    inputs = random_inputs(first=[(4, b) for b in range(B)])
    values, last = network.unroll(parameters, inputs, random_state())
    begun = Inputs(*(field[4:] for field in inputs))
    alone, its_last = network.unroll(parameters, begun, network.initial_state(parameters, B))
    np.testing.assert_array_equal(values[4:], alone)
    np.testing.assert_array_equal(last, its_last)
    without = network.unroll(parameters, inputs._replace(first=jnp.zeros((T, B), bool)), random_state())[0]
    assert not np.allclose(without[4:], alone)
    np.testing.assert_array_equal(without[:4], values[:4])


def test_an_episode_s_first_step_has_no_last_action_and_no_last_reward():
    network, parameters = made()
    one, other = (Inputs(*(field[0] for field in random_inputs(seed))) for seed in (0, 1))
    other = other._replace(stack=one.stack)
    for first, same in ((True, True), (False, False)):
        begins = jnp.full(B, first)
        values = [network.step(parameters, x._replace(first=begins), random_state())[0] for x in (one, other)]
        assert np.array_equal(*values) == same


def test_what_was_seen_is_remembered_and_another_environment_s_is_not():
    network, parameters = made()
    inputs = random_inputs()
    stack = inputs.stack.at[0, 1].add(1.0)
    before, after = (
        network.unroll(parameters, x, network.initial_state(parameters, B))[0]
        for x in (inputs, inputs._replace(stack=stack))
    )
    changed = np.abs(after - before).max(axis=-1) > 1e-7
    assert changed[:, 1].all()
    assert not changed[:, [0, 2]].any()


def test_a_network_without_a_core_has_a_state_of_no_values():
    network, parameters = made(NetworkConfig(hidden_units=(6,)))
    state = network.initial_state(parameters, B)
    assert state.shape == (B, 0)
    inputs = random_inputs()
    values, last = network.unroll(parameters, inputs, state)
    assert last.shape == (B, 0)
    for t in range(T):
        np.testing.assert_allclose(network.apply(parameters, inputs.stack[t]), values[t], atol=1e-6)


def test_a_second_call_compiles_nothing():
    network, parameters = made()
    unroll = jax.jit(network.unroll)
    state = network.initial_state(parameters, B)
    _, state = unroll(parameters, random_inputs(0), state)
    unroll(parameters, random_inputs(1), state)
    assert unroll._cache_size() == 1
