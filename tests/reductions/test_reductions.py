"""Every agent is a setting: what one setting must equal, it equals, update by update."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from gorila_jax.config import fields, get, override
from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.runtime.train import train
from tests.reductions.machine import (
    NUM_UPDATES,
    TRANSITIONS,
    config_of,
    draw_batches,
    initial_parameters,
    train_on,
)


@pytest.fixture(scope="module")
def batches():
    return draw_batches(config_of("gorila"))


def plain_dqn(config, batches) -> np.ndarray:
    """DQN as one would write it alone: one-step targets, Huber loss, Adam, a target network."""
    network, parameters = initial_parameters(config)
    stack, server = config.env.frame_stack, config.parameter_server
    optimizer = optax.adam(server.learning_rate)
    optimizer_state = optimizer.init(parameters)
    target = parameters
    history = []

    def loss(parameters, target, frames, actions, rewards, discounts):
        values = network.apply(parameters, frames[:, :stack])
        next_values = network.apply(target, frames[:, 1:])
        targets = rewards + discounts * next_values.max(axis=1)
        errors = jax.lax.stop_gradient(targets) - values[jnp.arange(len(actions)), actions]
        return optax.losses.huber_loss(errors).mean()

    @jax.jit
    def update(parameters, target, optimizer_state, *transitions):
        gradients = jax.grad(loss)(parameters, target, *transitions)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return optax.apply_updates(parameters, updates), optimizer_state

    for number, batch in enumerate(batches, start=1):
        frames, actions, rewards, discounts, _ = batch.steps
        parameters, optimizer_state = update(
            parameters,
            target,
            optimizer_state,
            frames,
            actions[:, stack],
            rewards[:, stack],
            discounts[:, stack],
        )
        if number % server.target_period_updates == 0:
            target = parameters
        history.append(np.asarray(ravel_pytree(parameters)[0]))
    return np.stack(history)


def assert_same(history, other, rtol=1e-5):
    """Update by update, relative to how large the parameters are."""
    assert history.shape == other.shape
    assert len(history) == NUM_UPDATES
    assert np.abs(history[-1] - history[0]).max() > 1e-3, "nothing was learned"
    difference = np.abs(history - other).max(axis=1) / np.abs(other).max(axis=1)
    assert difference.max() < rtol, f"first at update {int(np.argmax(difference >= rtol)) + 1}"


def assert_different(history, other):
    assert history.shape == other.shape
    assert np.abs(history - other).max() > 1e-6


def test_gorila_with_one_learner_and_one_shard_is_plain_dqn(batches):
    config = config_of("gorila")
    assert_same(train_on(config, batches), plain_dqn(config, batches))


def test_dqn_is_gorila_with_one_of_everything(batches):
    assert np.array_equal(train_on(config_of("dqn"), batches), train_on(config_of("gorila"), batches))


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rmsprop"])
def test_three_shards_are_one(batches, optimizer):
    one = config_of("gorila", **{"parameter_server.optimizer": optimizer})
    three = config_of("gorila", **{"parameter_server.optimizer": optimizer, "parameter_server.num_shards": 3})
    assert_same(train_on(three, batches), train_on(one, batches))


def test_four_devices_are_one_at_the_same_global_batch(batches, tmp_path):
    file = tmp_path / "history.npy"
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-m", "tests.reductions.machine", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "4", done.stderr
    assert_same(np.load(file), train_on(config_of("gorila"), batches))


UNDONE = {  # everything in which Ape-X differs from Gorila
    "replay.priority_exponent": 0.0,
    "learner.n_steps": 1,
    "learner.double_q": False,
    "learner.importance_exponent": 0.4,  # of uniform draws all weights are 1
    "network.dueling": False,
    "learner.max_abs_td_error": 1.0,
    "learner.max_gradient_norm": 0.0,
}


def test_apex_with_uniform_replay_one_step_and_single_q_is_gorila(batches):
    apex, gorila = config_of("apex", **UNDONE), config_of("gorila")
    assert_same(train_on(apex, batches), train_on(gorila, batches))


@pytest.mark.parametrize(
    "setting",
    [{"learner.double_q": True}, {"learner.max_abs_td_error": 0.1}, {"learner.max_gradient_norm": 0.1}],
    ids=lambda setting: next(iter(setting)),
)
def test_each_of_these_settings_changes_the_updates(batches, setting):
    assert_different(*(train_on(config_of("apex", **UNDONE | each), batches) for each in ({}, setting)))


def test_dueling_heads_have_more_parameters(batches):
    plain, dueling = (
        train_on(config_of("apex", **UNDONE | {"network.dueling": each}), batches[:1])
        for each in (False, True)
    )
    assert dueling.size > plain.size


def test_the_updates_of_three_steps_look_beyond_the_first():
    config = config_of("apex", **UNDONE | {"learner.n_steps": 3})
    batches, first_row = draw_batches(config), config.env.frame_stack
    assert {batch.steps.reward.shape[1] - first_row for batch in batches} == {3}
    cut = [
        batch._replace(steps=jax.tree.map(lambda rows: rows[:, : first_row + 1], batch.steps))
        for batch in batches
    ]
    assert_different(train_on(config, batches), train_on(config, cut))


def test_what_surprised_is_drawn_more_often_and_weighs_less():
    """The values of `draw_batches` are 0, so it is the reward at the end of a game that surprises."""
    configs = [config_of("apex", **UNDONE | {"replay.priority_exponent": each}) for each in (0.0, 0.2)]
    uniform, prioritized = (draw_batches(config) for config in configs)
    shares = [
        np.mean([batch.steps.reward[:, -1] != 0 for batch in batches]) for batches in (uniform, prioritized)
    ]
    assert shares[1] > 3 * shares[0] > 0
    unweighted = config_of("apex", **UNDONE | {"learner.importance_exponent": 0.0})
    assert_different(train_on(configs[1], prioritized), train_on(unweighted, prioritized))
    assert np.array_equal(train_on(configs[0], uniform), train_on(unweighted, uniform))


def same_of_sequences(**overrides):
    """Ape-X of one step, and R2D2 whose sequences have one step and whose state is empty."""
    apex = config_of("apex", **{"learner.n_steps": 1} | overrides)
    r2d2 = config_of("r2d2", **TRANSITIONS | overrides | {"learner.importance_exponent": 0.4})
    differing = {path for path in fields() if get(apex, path) != get(r2d2, path)} - {"agent"}
    return apex, override(r2d2, {path: get(apex, path) for path in differing - set(SEQUENCE_LOSS)})


SEQUENCE_LOSS = ("sequence.start_state", "sequence.priority_eta")


def test_r2d2_of_one_step_without_memory_is_apex_of_one_step():
    apex, r2d2 = same_of_sequences()
    batches, sequences = draw_batches(apex), draw_batches(r2d2)
    for one, other in zip(batches, sequences, strict=True):
        np.testing.assert_array_equal(one.info.keys, other.info.keys)
        np.testing.assert_array_equal(one.steps.observation, other.steps.observation)
    assert_same(train_on(r2d2, sequences), train_on(apex, batches))


def test_r2d2_in_lockstep_of_one_step_without_memory_is_apex_in_lockstep(tmp_path):
    """The whole machine: actors, their first priorities, replay and the priorities that learning gives."""
    common = {"run.lockstep": True, "run.total_frames": 1_500, "env.num_environments": 8}
    runs = [train(config, tmp_path / config.agent) for config in same_of_sequences(**common)]
    assert runs[0].updates == runs[1].updates > 50
    apex, r2d2 = (np.asarray(ravel_pytree(load_run(run.workdir).parameters)[0], np.float64) for run in runs)
    assert np.abs(apex - r2d2).max() < 1e-4 * np.abs(apex).max()


def test_apex_in_lockstep_is_gorila_in_lockstep(tmp_path):
    """The whole machine, actors included, with one exploration rate for all environments."""
    common = {"run.lockstep": True, "run.total_frames": 1_500, "env.num_environments": 8}
    apex = UNDONE | {"actor.epsilon_base": 0.3, "actor.epsilon_alpha": 0.0}
    gorila = {"actor.epsilon_initial": 0.3, "actor.epsilon_final": 0.3, "learner.outlier_deviations": 0.0}
    runs = [
        train(config_of(agent, **common | settings), tmp_path / agent)
        for agent, settings in (("apex", apex), ("gorila", gorila))
    ]
    assert runs[0].updates == runs[1].updates > 50
    assert runs[0].parameters_checksum == runs[1].parameters_checksum
