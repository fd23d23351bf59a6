"""Step streams to exact sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gorila_jax.actor.accumulator import ActorStep, TransitionAccumulator
from gorila_jax.actor.sequences import SequenceAccumulator
from gorila_jax.rl.rescaling import IDENTITY, rescaling
from gorila_jax.rl.windows import Layout, transition_layout
from gorila_jax.types import End
from tests.doubles import CounterEnv, Recorder, episode

GAMMA = 0.5
ETA = 0.9


def layout_of(length=4, stride=2, burn_in=3, n_steps=2, frame_stack=2, stores_state=True) -> Layout:
    return Layout(frame_stack, burn_in, length, stride, n_steps, stores_state)


def play(scripts, num_steps, layout, pair=IDENTITY, make=SequenceAccumulator, offset=0):
    """Feeds steps to an accumulator; all its numbers follow from the numbers of observations.

    Of observation i the value is 10 i, Q of the action taken there is i, and the state before it is [i, -i].
    """
    environment = CounterEnv(scripts, GAMMA, reset_reward=1e6, offset=offset)
    recorder = Recorder(len(scripts), layout.window_steps)
    if make is TransitionAccumulator:
        accumulator = make(recorder, len(scripts), layout.frame_stack, layout.n_steps)
    else:
        accumulator = make(
            recorder, len(scripts), layout, max_abs_reward=0.0, rescaling=pair, priority_eta=ETA
        )

    def observe(actions, step, before):
        numbers = step.observation.astype(np.float32)
        states = np.stack([numbers, -numbers], axis=1)
        accumulator.observe(ActorStep(actions, before, step, 10 * numbers, states))
        return numbers

    before = observe(
        np.zeros(len(scripts), np.int32), environment.reset(), np.zeros(len(scripts), np.float32)
    )
    for t in range(num_steps):
        actions = np.full(len(scripts), t % 4, np.int32)
        before = observe(actions, environment.step(actions), before)
    return recorder


def trained(item, layout) -> list[int]:
    """Numbers of the observations whose steps an item trains."""
    begin = layout.frame_stack - 1 + layout.burn_in_steps
    valid = item.steps.valid[begin + 1 : begin + 1 + layout.length_steps]
    return item.steps.observation[begin : begin + layout.length_steps][valid].tolist()


LAYOUTS = [
    layout_of(),
    layout_of(length=4, stride=4, burn_in=0, n_steps=1),
    layout_of(length=5, stride=1, burn_in=0, n_steps=1, frame_stack=1, stores_state=False),
    layout_of(length=3, stride=2, burn_in=8, n_steps=5, frame_stack=4),
    layout_of(length=80, stride=40, burn_in=40, n_steps=5),
    layout_of(length=1, stride=1, burn_in=0, n_steps=3),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("end", [End.GAME_OVER, End.TIME_LIMIT, End.LIFE_LOSS])
def test_every_real_step_is_trained_and_none_of_another_episode(layout, end):
    lengths = [13, 18, 20, 5, 1, 2, 3, 4, 6, 7]
    recorder = play([[episode(length, end) for length in lengths]], sum(lengths) + len(lengths) - 1, layout)
    start = 0
    items = iter(recorder.items)
    for length in lengths:
        own = []
        for _ in range(math.ceil(length / layout.stride_steps)):
            item = next(items)
            real = item.steps.observation[item.steps.valid]
            assert real.min() >= start + 1, "a step of the episode before"
            assert real.max() <= start + length, "a step of the next one"
            assert set(item.steps.observation[~item.steps.valid]) <= {start, start + length}
            own.append(trained(item, layout))
        assert [steps[0] for steps in own] == [start + k * layout.stride_steps for k in range(len(own))]
        assert sorted({number for steps in own for number in steps}) == list(range(start, start + length))
        assert all(steps == list(range(steps[0], steps[0] + len(steps))) for steps in own)
        start += length + 1
    assert next(items, None) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", range(1, 8))
def test_short_episodes_give_a_valid_item_each(layout, length):
    items = play([[episode(length)]], 3 * (length + 1) - 1, layout).items
    assert len(items) >= 3
    assert all(trained(item, layout) for item in items)


def test_the_state_is_the_one_before_the_first_observation_of_the_window():
    layout = layout_of()
    items = play([[episode(13)]], 13, layout).items
    assert len(items) == 7
    # Sequences train from 0, 2, 4 ... on; with three steps of burn-in they begin at 0 (padded), 0, 1, 3 ...
    begins = [max(0, 2 * k - 3) for k in range(len(items))]
    assert [item.state.tolist() for item in items] == [[begin, -begin] for begin in begins]
    for item, begin in zip(items[2:], begins[2:], strict=True):
        assert item.steps.observation[layout.frame_stack - 1] == begin


def test_every_environment_has_its_own_states():
    recorder = play([[episode(6)], [episode(11)], [episode(3)]], 30, layout_of(), offset=1000)
    assert {item.stream for item in recorder.items} == {0, 1, 2}
    for item in recorder.items:
        assert 1000 * item.stream <= item.state[0] < 1000 * item.stream + 100


def observe_states(layout, *states):
    """The items of one environment's first steps; each state [1, K] is the network's before one of them."""
    recorder = Recorder(1, layout.window_steps)
    accumulator = SequenceAccumulator(
        recorder, 1, layout, max_abs_reward=0.0, rescaling=IDENTITY, priority_eta=ETA
    )
    environment = CounterEnv([[episode(9)]], GAMMA)
    action, zeros = np.zeros(1, np.int32), np.zeros(1, np.float32)
    step = environment.reset()
    for state in states:
        shared = np.array(state, np.float32)
        accumulator.observe(ActorStep(action, zeros, step, zeros, shared))
        shared[:] = 8.0  # as an actor may, which goes on with its own
        step = environment.step(action)
    return recorder.items


def test_a_kept_state_does_not_change_with_the_actor_s():
    layout = layout_of(length=2, stride=2, burn_in=0, n_steps=1)
    items = observe_states(layout, [[7.0]], [[6.0]], [[5.0]])
    assert [item.state.tolist() for item in items] == [[7.0]]


def test_a_state_that_is_too_large_for_storage_is_clipped_and_one_that_is_not_finite_stays_so():
    layout = layout_of(length=1, stride=1, burn_in=0, n_steps=1)
    state = [[1e6, -1e6, np.inf, -np.inf, np.nan, 0.5]]
    [item] = observe_states(layout, state, state)
    np.testing.assert_array_equal(item.state, [65504, -65504, np.inf, -np.inf, np.nan, 0.5])


def test_nothing_is_stored_where_sequences_begin_from_zero():
    items = play([[episode(13)]], 13, layout_of(stores_state=False)).items
    assert all(item.state.shape == (0,) for item in items)


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("end", [End.GAME_OVER, End.TIME_LIMIT])
def test_sequences_of_one_step_are_the_transitions(n_steps, end):
    layout = transition_layout(2, n_steps)
    scripts = [[episode(5, end), episode(1, end), episode(2, end)], [episode(4, end)]]
    ours, theirs = (
        play(scripts, 25, layout, make=make) for make in (SequenceAccumulator, TransitionAccumulator)
    )
    assert len(ours.items) == len(theirs.items) > 25
    for one, other in zip(ours.items, theirs.items, strict=True):
        assert one.stream == other.stream
        assert one.priority == pytest.approx(other.priority, rel=1e-6)
        for field, other_field in zip(one.steps, other.steps, strict=True):
            np.testing.assert_array_equal(field, other_field)
    assert [len(rows) for rows in ours.rows] == [len(rows) for rows in theirs.rows]


def test_a_priority_mixes_the_actor_s_own_errors():
    layout = layout_of(length=3, stride=3, burn_in=1, n_steps=2)
    items = play([[episode(5, End.TIME_LIMIT, reward=2.0)]], 5, layout).items
    # 2 + 0.5 * 2 + 0.25 * 10 (i + 2) - i of the first three steps; then one of two steps and one of one.
    first = [3 + 2.5 * (i + 2) - i for i in range(3)]
    second = [3 + 2.5 * 5 - 3, 2 + 5 * 5 - 4]
    expected = [ETA * max(errors) + (1 - ETA) * np.mean(errors) for errors in (first, second)]
    assert [item.priority for item in items] == pytest.approx(expected, rel=1e-5)


def test_a_priority_is_of_rescaled_values():
    layout, pair = layout_of(length=1, stride=1, burn_in=0, n_steps=1), rescaling(1e-3)
    (item,) = play([[episode(1, End.TIME_LIMIT, reward=2.0)]], 1, layout, pair).items
    assert item.priority == pytest.approx(float(pair.apply(2 + 0.5 * pair.invert(10.0))), rel=1e-5)


def test_a_value_that_is_not_finite_makes_no_priority_unusable():
    layout = layout_of(length=2, stride=2, burn_in=0, n_steps=1)
    recorder = Recorder(1, layout.window_steps)
    accumulator = SequenceAccumulator(
        recorder, 1, layout, max_abs_reward=0.0, rescaling=IDENTITY, priority_eta=ETA
    )
    environment, state = CounterEnv([[episode(4)]], GAMMA), np.zeros((1, 0), np.float32)
    bad, action = np.array([np.nan], np.float32), np.zeros(1, np.int32)
    accumulator.observe(ActorStep(action, bad, environment.reset(), bad, state))
    for _ in range(4):
        accumulator.observe(ActorStep(action, bad, environment.step(action), bad, state))
    assert len(recorder.items) == 2
