"""Actors as in a run, into a replay that nobody samples: how fast acting is by itself."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import jax
import numpy as np

from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import Policy, make_policy
from gorila_jax.config import override
from gorila_jax.environments import make_environment
from gorila_jax.replay import make_replay
from gorila_jax.runtime.plan import Plan, state_size, table_spec
from gorila_jax.types import GorilaError, Network, Parameters, ReplayWriter

WAIT_S = 10.0  # nothing holds the actor back for so long


def lone_actor(plan: Plan, stack: contextlib.ExitStack) -> Callable[[], int]:
    """The one actor of a plan that has no other: see `lone_actors`."""
    (act,) = lone_actors(plan, stack)
    return act


def lone_actors(plan: Plan, stack: contextlib.ExitStack) -> list[Callable[[], int]]:
    """All actors of a plan. Their parameters never change, and the ratio of samples to inserts is left free.

    Args:
      plan: of the run that they could be in.
      stack: closes what is started here.

    Returns:
      For each of them a function that acts once in each of its environments and says how many of these steps
      count.
    """
    config = plan.config
    free = override(config, {"replay.samples_per_insert": 0.0})
    replay = make_replay(plan.backend, table_spec(free, plan.recipe, plan.spec), 1, run_id=uuid.uuid4().hex)
    stack.callback(replay.close)
    network = plan.recipe.network(config, plan.spec)
    policy, parameters = make_policy(network), network.init(jax.random.PRNGKey(0))
    return [
        _start(plan, replay.writer(0, config.env.num_environments), policy, parameters, network, index, stack)
        for index in range(config.actor.num_actors)
    ]


def _start(
    plan: Plan,
    writer: ReplayWriter,
    policy: Policy,
    parameters: Parameters,
    network: Network,
    index: int,
    stack: contextlib.ExitStack,
) -> Callable[[], int]:
    config = plan.config
    size = config.env.num_environments
    epsilons = np.full(size, config.actor.epsilon_final, np.float32)
    steps = 0

    def count_steps(count: int) -> None:
        nonlocal steps
        steps += count

    ports = ActorPorts(
        ready=writer.ready,
        pull=lambda: (0, parameters),
        epsilons=lambda version: epsilons,
        count_steps=count_steps,
        report=lambda episode: None,
        close=writer.close,
    )
    actor = Actor(
        index,
        make_environment(config.environment, config.env, seed=1 + index),
        policy,
        plan.recipe.accumulator(config, writer),
        ports,
        config.env.frame_stack,
        config.actor.parameter_period_steps,
        config.learner.max_abs_reward,
        jax.random.PRNGKey(1 + index),
        state_size(network),
    )
    stack.callback(actor.close)

    def step() -> int:
        before = steps
        if not actor.step(WAIT_S):
            raise GorilaError(f"replay has held the actor back for {WAIT_S:g} s")
        return steps - before

    return step
