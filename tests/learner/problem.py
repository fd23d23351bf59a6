"""A problem small enough to work out by hand: Q(s, a) = w_a s, one-step items of one number each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gorila_jax.rl.priorities import priorities
from gorila_jax.rl.td_errors import huber_loss, q_learning
from gorila_jax.rl.windows import transitions
from gorila_jax.types import STORED_STATE, Batch, LossOutput, SampleInfo, Step

NUM_ACTIONS = 2


def loss_fn(parameters: Any, target: Any, steps: Step, state: Any) -> LossOutput:
    """Q-learning with squared loss."""
    got = transitions(steps, 1)
    q_tm1 = got.stack_tm1 @ parameters["w"]
    q_t = got.stack_t @ target["w"]
    td_errors = q_learning(q_tm1, got.a_tm1, got.r_t, got.discount_t, q_t)
    return LossOutput(huber_loss(td_errors, 0.0), abs(td_errors), priorities(td_errors))


def parameters(seed: int = 0) -> dict[str, jax.Array]:
    return {"w": jax.random.normal(jax.random.PRNGKey(seed), (1, NUM_ACTIONS))}


def steps(batch_size: int, seed: int = 0, reward: float | None = None) -> Step:
    """[B, 2] rows: a start, and the step that led on from it."""
    random = np.random.default_rng(seed)
    rewards = random.normal(size=(batch_size, 2)) if reward is None else np.full((batch_size, 2), reward)
    return Step(
        observation=random.normal(size=(batch_size, 2)).astype(np.float32),
        action=random.integers(0, NUM_ACTIONS, (batch_size, 2)).astype(np.int32),
        reward=rewards.astype(np.float32),
        discount=random.choice([0.0, 0.9], (batch_size, 2)).astype(np.float32),
        valid=np.array([[False, True]] * batch_size),
    )


def expected(parameters: Any, target: Any, steps: Step) -> tuple[float, np.ndarray, np.ndarray]:
    """(mean loss, gradient of w, TD errors) of `loss_fn`, item by item in float64."""
    w, w_target = (np.asarray(tree["w"], np.float64)[0] for tree in (parameters, target))
    gradient, td_errors = np.zeros_like(w), []
    for start, end, action, reward, discount in zip(
        steps.observation[:, 0], steps.observation[:, 1], steps.action[:, 1], steps.reward[:, 1],
        steps.discount[:, 1], strict=True,
    ):  # fmt: skip
        td_errors.append(reward + discount * np.max(w_target * end) - w[action] * start)
        gradient[action] -= td_errors[-1] * start / len(steps.action)
    return float(np.mean(0.5 * np.square(td_errors))), gradient, np.array(td_errors)


def batch(batch_size: int, seed: int = 0, reward: float | None = None) -> Batch:
    info = SampleInfo(
        np.arange(batch_size, dtype=np.uint64), np.full(batch_size, 0.1), np.full(batch_size, 10, np.int64)
    )
    return Batch(steps(batch_size, seed, reward), no_state(batch_size), info)


def no_state(batch_size: int) -> np.ndarray:
    return np.zeros((batch_size, 0), STORED_STATE)


def shares(tree: Any, num_devices: int) -> Any:
    """[B, ...] to [D, B/D, ...]."""
    return jax.tree_util.tree_map(lambda x: x.reshape(num_devices, len(x) // num_devices, *x.shape[1:]), tree)


def replicated(tree: Any, num_devices: int = 1) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.stack([x] * num_devices), tree)
