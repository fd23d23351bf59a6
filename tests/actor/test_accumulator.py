"""Step streams to exact items."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.actor.accumulator import ActorStep, TransitionAccumulator
from gorila_jax.types import End
from tests.doubles import CounterEnv, Episode, Recorder, episode

GAMMA = 0.5


def play(scripts, num_steps, frame_stack=2, n_steps=1, max_abs_reward=0.0, q_taken=0.0, **kwargs):
    """Feeds `num_steps` environment steps with actions 0, 1, 2, 3, 0, ... to an accumulator.

    The value of an observation is ten times its number.
    """
    environment = CounterEnv(scripts, GAMMA, reset_reward=1e6, **kwargs)
    recorder = Recorder(len(scripts), frame_stack + n_steps)
    accumulator = TransitionAccumulator(recorder, len(scripts), frame_stack, n_steps, max_abs_reward)

    def observe(actions, step):
        q_values = np.full(len(scripts), q_taken, np.float32)
        values = 10.0 * step.observation.astype(np.float32)
        states = np.zeros((len(scripts), 0), np.float32)
        accumulator.observe(ActorStep(actions, q_values, step, values, states))

    observe(np.zeros(len(scripts), np.int32), environment.reset())
    for t in range(num_steps):
        actions = np.full(len(scripts), t % 4, np.int32)
        observe(actions, environment.step(actions))
    return recorder


def test_three_episodes_of_five_steps_give_fifteen_items_and_none_crosses_an_end():
    recorder = play([[episode(5)]], 3 * 6 - 1, frame_stack=1)
    assert len(recorder.items) == 15
    starts = [(item.steps.observation[0], item.steps.observation[-1]) for item in recorder.items]
    # An episode shows six numbers; its last one starts nothing and the next first one ends nothing.
    assert starts == [(6 * e + t, 6 * e + t + 1) for e in range(3) for t in range(5)]
    assert all(abs(item.steps.reward).max() < 1e6 for item in recorder.items)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("n_steps", [1, 3, 5])
@pytest.mark.parametrize("end", [End.GAME_OVER, End.TIME_LIMIT, End.LIFE_LOSS])
def test_an_episode_of_l_real_steps_gives_exactly_l_items(length, n_steps, end):
    recorder = play([[episode(length, end)]], length, n_steps=n_steps)
    assert len(recorder.items) == length
    for i, item in enumerate(recorder.items):
        real = min(n_steps, length - i)
        assert item.steps.valid[2:].sum() == real
        # N3: item i starts at observation i and its last real observation is min(i + n, L).
        assert item.steps.observation[1] == i
        assert item.steps.observation[1 + real] == min(i + n_steps, length)
        assert item.steps.action[2] == i % 4  # N6: the first action, not the newest


def test_the_first_observation_fills_the_stack_after_every_kind_of_end():
    script = [[episode(3, End.GAME_OVER), episode(3, End.TIME_LIMIT), episode(3, End.LIFE_LOSS)]]
    recorder = play(script, 11, frame_stack=4)
    stacks = [item.steps.observation[:4].tolist() for item in recorder.items]
    assert stacks == [
        [f, f, f, f] if t == 0 else [f, f, f, f + 1] if t == 1 else [f, f, f + 1, f + 2]
        for f in (0, 4, 8)
        for t in range(3)
    ]


@pytest.mark.parametrize(
    ("end", "discount"), [(End.GAME_OVER, 0.0), (End.TIME_LIMIT, GAMMA), (End.LIFE_LOSS, 0.0)]
)
def test_the_last_step_carries_the_discount_of_its_kind_of_end(end, discount):
    recorder = play([[episode(3, end)]], 3)
    assert [item.steps.discount[-1] for item in recorder.items] == [GAMMA, GAMMA, discount]


def test_padding_near_the_end_adds_no_reward_and_keeps_the_discount():
    recorder = play([[Episode((1.0, 2.0, 4.0), (End.TIME_LIMIT,))]], 3, n_steps=3)
    rows = [(item.steps.reward[2:].tolist(), item.steps.discount[2:].tolist()) for item in recorder.items]
    assert rows == [
        ([1, 2, 4], [GAMMA, GAMMA, GAMMA]),
        ([2, 4, 0], [GAMMA, GAMMA, 1]),
        ([4, 0, 0], [GAMMA, 1, 1]),
    ]


def test_no_reward_of_the_next_episode_leaks_in():
    recorder = play([[episode(4, End.TIME_LIMIT, 1), episode(4, End.GAME_OVER, 100)]], 9, n_steps=5)
    assert len(recorder.items) == 8
    assert all(item.steps.reward.max() <= 1 for item in recorder.items[:4])


def test_environments_do_not_mix():
    recorder = play([[episode(3)], [episode(5)]], 20, offset=1000)
    for item in recorder.items:
        assert (item.steps.observation >= 1000).all() == (item.stream == 1)


@pytest.mark.parametrize(
    ("end", "last_discount"), [(End.GAME_OVER, 0.0), (End.TIME_LIMIT, GAMMA), (End.LIFE_LOSS, 0.0)]
)
def test_a_first_priority_is_the_td_error_of_the_actors_own_values(end, last_discount):
    recorder = play([[Episode((1.0, 2.0, 4.0, 8.0), (end,))]], 4, n_steps=2, q_taken=7.0)
    assert [item.priority for item in recorder.items] == pytest.approx(
        [
            abs(1 + GAMMA * 2 + GAMMA**2 * 20 - 7) + 1e-6,
            abs(2 + GAMMA * 4 + GAMMA**2 * 30 - 7) + 1e-6,
            abs(4 + GAMMA * 8 + GAMMA * last_discount * 40 - 7) + 1e-6,
            abs(8 + last_discount * 40 - 7) + 1e-6,
        ],
        rel=1e-6,
    )


def test_rewards_count_in_priorities_as_they_do_in_the_loss():
    recorder = play([[Episode((100.0, -100.0), (End.GAME_OVER,))]], 2, max_abs_reward=1.0, n_steps=2)
    assert [item.priority for item in recorder.items] == pytest.approx([1 - GAMMA + 1e-6, 1 + 1e-6])
    assert recorder.items[0].steps.reward[2:].tolist() == [100, -100]  # stored as they were


@pytest.mark.parametrize("length", [1, 2, 3])
def test_nothing_of_the_episode_before_is_in_a_priority(length):
    recorder = play([[episode(2, reward=50.0), episode(length)]], 3 + length, n_steps=3)
    assert [item.priority for item in recorder.items[2:]] == pytest.approx(
        [sum(GAMMA**k for k in range(left)) + 1e-6 for left in range(length, 0, -1)]
    )


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_what_is_not_finite_enters_last_and_is_left_to_the_learner(reward):
    recorder = play([[Episode((1.0, reward, 1.0), (End.GAME_OVER,))]], 3)
    first_priorities = [item.priority for item in recorder.items]
    assert first_priorities == pytest.approx([1 + GAMMA * 10 + 1e-6, 1e-6, 1 + 1e-6])
    assert not np.isfinite(recorder.items[1].steps.reward[-1])
