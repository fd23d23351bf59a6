"""A learner and a parameter server fed from a list: the machine of a configuration, without its actors."""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from gorila_jax.actor.accumulator import ActorStep
from gorila_jax.agents import find_recipe
from gorila_jax.config import Config
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.replay.memory import MemoryReplay
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import table_spec
from gorila_jax.runtime.topology import make_topology
from gorila_jax.types import Batch

NUM_UPDATES = 60

OVERRIDES = {
    "env.frame_stack": 2,
    "replay.learning_starts_steps": 32,
    "replay.samples_per_insert": 0.0,
    "learner.batch_size": 16,
    "learner.outlier_deviations": 0.0,
    "learner.prefetch_batches": 0,
    "parameter_server.learning_rate": 1e-3,
    "parameter_server.target_period_updates": 7,
}


TRANSITIONS = {  # sequences of one step, of an agent that remembers nothing
    "network.core": "none",
    "network.core_units": 512,
    "network.last_action_and_reward": False,
    "sequence.length_steps": 1,
    "sequence.overlap_steps": 0,
    "sequence.burn_in_steps": 0,
    "learner.rescaling_epsilon": 0.0,
    "learner.n_steps": 1,
}


def config_of(agent: str, **overrides) -> Config:
    return make_config(agent, "Catch-v0", overrides=OVERRIDES | overrides)


def draw_batches(config: Config, num_batches: int = NUM_UPDATES) -> list[Batch]:
    """Batches of random play on Catch, drawn from a real replay."""
    recipe, spec = find_recipe(config.agent), environment_spec(config.environment, config.env)
    replay = MemoryReplay(table_spec(config, recipe, spec), 1, seed=5)
    environment = make_environment(config.environment, config.env, seed=5)
    size = environment.num_environments
    accumulator = recipe.accumulator(config, replay.writer(0, size))
    random = np.random.default_rng(5)
    values, states = np.zeros(size, np.float32), np.zeros((size, 0), np.float32)
    accumulator.observe(ActorStep(np.zeros(size, np.int32), values, environment.reset(), values, states))
    for _ in range(100):
        actions = random.integers(0, spec.num_actions, size, dtype=np.int32)
        accumulator.observe(ActorStep(actions, values, environment.step(actions), values, states))
    sampler = replay.sampler(0, config.learner.batch_size)
    batches = [sampler.sample(0.0) for _ in range(num_batches)]
    assert all(batch is not None for batch in batches)
    return batches


def initial_parameters(config: Config):
    spec = environment_spec(config.environment, config.env)
    network = find_recipe(config.agent).network(config, spec)
    return network, network.init(jax.random.PRNGKey(3))


def train_on(config: Config, batches: list[Batch]) -> np.ndarray:
    """The flat parameters after every update, [updates, parameters]."""
    recipe = find_recipe(config.agent)
    network, parameters = initial_parameters(config)
    devices = make_topology(config, jax.local_devices()).learner_devices[:1]
    server = make_parameter_server(parameters, config.parameter_server, devices)
    feed = iter(batches)
    learner = Learner(
        config.learner,
        recipe.loss(config, network),
        devices[0],
        Prefetcher(config.learner, devices[0], lambda timeout_s: next(feed)).next_batch,
        lambda: server.pull(0),
        lambda gradient: server.push(0, gradient),
    )
    history = []
    for _ in batches:
        assert learner.step(0.0)
        history.append(np.asarray(ravel_pytree(server.pull_policy()[1])[0]))
    return np.stack(history)


if __name__ == "__main__":
    # On as many devices as XLA_FLAGS says: prints their number and writes the history to the file named.
    the_config = config_of("gorila")
    np.save(sys.argv[1], train_on(the_config, draw_batches(the_config)))
    print(jax.local_device_count())
