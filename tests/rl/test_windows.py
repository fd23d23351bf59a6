from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.rl.td_errors import q_learning
from gorila_jax.rl.windows import transition_layout, transitions
from gorila_jax.types import Step

GAMMA = 0.9


def episode_items(
    rewards: list[float], frame_stack: int, n_steps: int, last_discount: float, first_observation: int = 1
) -> Step:
    """All items of one episode, [L, W, ...]: observations are numbers, actions ten times what they led to.

    A slow and plain reading of the window's definition, row by row.
    """
    length = len(rewards)
    items = []
    for start in range(length):
        rows = []
        for index in range(start - frame_stack + 1, start + n_steps + 1):
            frame = first_observation + min(max(index, 0), length)
            taken = 1 <= index <= length
            rows.append(
                Step(
                    observation=np.full((2, 2), frame, np.uint8),
                    action=np.int32(10 * frame if taken else 0),
                    reward=np.float32(rewards[index - 1] if taken else 0),
                    discount=np.float32(1 if not taken else last_discount if index == length else GAMMA),
                    valid=np.bool_(taken),
                )
            )
        items.append(jax.tree_util.tree_map(lambda *fields: np.stack(fields), *rows))
    return jax.tree_util.tree_map(lambda *fields: np.stack(fields), *items)


def frames(stacks: jax.Array) -> list[list[int]]:
    """The number that every observation of a stack shows; all its pixels must agree."""
    stacks = np.asarray(stacks)
    assert np.all(stacks == stacks[..., :1, :1])
    return stacks[..., 0, 0].tolist()


def test_one_step_items(maybe_jit):
    items = episode_items([1.0, 2.0, 3.0], frame_stack=4, n_steps=1, last_discount=0.0)
    got = maybe_jit(lambda steps: transitions(steps, 4))(items)
    assert frames(got.stack_tm1) == [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3]]
    assert frames(got.stack_t) == [[1, 1, 1, 2], [1, 1, 2, 3], [1, 2, 3, 4]]
    assert got.a_tm1.tolist() == [20, 30, 40]
    np.testing.assert_allclose(got.r_t, [1, 2, 3])
    np.testing.assert_allclose(got.discount_t, [0.9, 0.9, 0], rtol=1e-6)
    assert got.stack_tm1.dtype == got.stack_t.dtype == jnp.uint8


def test_three_step_items_near_the_end_stop_at_the_last_real_observation(maybe_jit):
    items = episode_items([1.0, 2.0, 3.0, 4.0], frame_stack=2, n_steps=3, last_discount=GAMMA)
    got = maybe_jit(lambda steps: transitions(steps, 2))(items)
    assert frames(got.stack_tm1) == [[1, 1], [1, 2], [2, 3], [3, 4]]
    assert frames(got.stack_t) == [[3, 4], [4, 5], [4, 5], [4, 5]]
    assert got.a_tm1.tolist() == [20, 30, 40, 50]
    np.testing.assert_allclose(
        got.r_t, [1 + 0.9 * 2 + 0.9**2 * 3, 2 + 0.9 * 3 + 0.9**2 * 4, 3 + 0.9 * 4, 4], rtol=1e-6
    )
    np.testing.assert_allclose(got.discount_t, [0.9**3, 0.9**3, 0.9**2, 0.9], rtol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_every_item_of_an_episode_starts_and_ends_where_it_should(length, frame_stack, n_steps):
    items = episode_items([1.0] * length, frame_stack, n_steps, last_discount=0.0)
    got = transitions(items, frame_stack)
    assert got.r_t.shape == (length,)
    starts = [stack[-1] - 1 for stack in frames(got.stack_tm1)]
    ends = [stack[-1] - 1 for stack in frames(got.stack_t)]
    assert starts == list(range(length))
    assert ends == [min(start + n_steps, length) for start in range(length)]
    np.testing.assert_allclose(
        got.r_t, [sum(GAMMA**k for k in range(end - start)) for start, end in zip(starts, ends, strict=True)],
        rtol=1e-6,
    )  # fmt: skip


def test_game_over_and_time_limit_differ_by_the_value_of_the_last_frame(maybe_jit):
    """The same five steps, ended either way: targets differ by gamma^k Q(last frame) where they reach it."""

    def targets(steps: Step) -> jax.Array:
        got = transitions(steps, 2)
        values = got.stack_t[:, :, 0, 0].astype(jnp.float32) @ jnp.array([1.0, 100.0])  # of both frames
        q_t = jnp.stack([values, jnp.zeros_like(values)], axis=-1)
        zeros = jnp.zeros_like(q_t)
        return q_learning(zeros, jnp.zeros_like(got.a_tm1), got.r_t, got.discount_t, q_t)

    rewards = [1.0, 2.0, 3.0, 4.0, 5.0]
    ended = maybe_jit(targets)(episode_items(rewards, 2, 3, last_discount=0.0))
    cut = maybe_jit(targets)(episode_items(rewards, 2, 3, last_discount=GAMMA))
    last = 5 * 1.0 + 6 * 100.0
    np.testing.assert_allclose(cut - ended, [0, 0, 0.9**3 * last, 0.9**2 * last, 0.9 * last], rtol=1e-5)
    np.testing.assert_allclose(ended[-1], 5.0, rtol=1e-6)


@pytest.mark.parametrize("n_steps", [2, 3])
def test_padding_changes_nothing(maybe_jit, n_steps):
    frame_stack = 3
    items = episode_items([1.0, -2.0, 3.0, 4.0], frame_stack, n_steps, last_discount=GAMMA)
    padding = ~items.valid & (np.arange(frame_stack + n_steps) >= frame_stack)
    assert padding.any()
    random = np.random.default_rng(0)

    def scribbled(rows: np.ndarray) -> np.ndarray:
        where = padding.reshape(padding.shape + (1,) * (rows.ndim - 2))
        return np.where(where, random.integers(1, 255, rows.shape).astype(rows.dtype), rows)

    changed = items._replace(
        observation=scribbled(items.observation),
        action=scribbled(items.action),
        reward=scribbled(items.reward),
        discount=scribbled(items.discount),
    )
    assert not np.array_equal(changed.observation, items.observation)
    rebuild = maybe_jit(lambda steps: transitions(steps, frame_stack))
    for before, after in zip(rebuild(items), rebuild(changed), strict=True):
        np.testing.assert_array_equal(before, after)


def test_vector_observations_and_any_batch():
    steps = Step(
        observation=np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5),
        action=np.array([[0, 1, 2], [0, 3, 4]], np.int32),
        reward=np.zeros((2, 3), np.float32),
        discount=np.ones((2, 3), np.float32),
        valid=np.array([[False, True, True], [False, True, False]]),
    )
    got = transitions(steps, 1)
    np.testing.assert_array_equal(got.stack_tm1, steps.observation[:, :1])
    np.testing.assert_array_equal(got.stack_t[:, 0], steps.observation[[0, 1], [2, 1]])
    assert got.a_tm1.tolist() == [1, 3]


def test_a_window_without_a_step_is_refused():
    items = episode_items([1.0, 2.0], frame_stack=2, n_steps=1, last_discount=0.0)
    assert items.reward.shape[1] == transition_layout(2, 1).window_steps == 3
    with pytest.raises(ValueError, match="3 rows"):
        transitions(items, 3)
