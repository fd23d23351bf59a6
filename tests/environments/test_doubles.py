import numpy as np
import pytest

from gorila_jax.types import End, ReplayError, Step
from tests.doubles import CounterEnv, Episode, Recorder, episode


def row(number: int, valid: bool = True) -> Step:
    return Step(
        np.full(2, number, np.uint8), np.int32(number), np.float32(1), np.float32(0.9), np.bool_(valid)
    )


def test_the_environment_shows_numbers_that_never_repeat():
    environment = CounterEnv([[episode(2), Episode((5.0, 6.0, 7.0))], [episode(9)]], offset=1000)
    steps = [environment.reset()] + [environment.step(np.zeros(2, np.int32)) for _ in range(6)]
    assert [step.observation[0] for step in steps] == [0, 1, 2, 3, 4, 5, 6]
    assert [step.observation[1] for step in steps] == [1000, 1001, 1002, 1003, 1004, 1005, 1006]
    assert [step.reward[0] for step in steps] == [0, 1, 1, 0, 5, 6, 7]
    assert [step.first[0] for step in steps] == [True, False, False, True, False, False, False]
    assert [step.end[0] for step in steps] == [0, 0, End.GAME_OVER, 0, 0, 0, End.GAME_OVER]


def test_the_environment_can_reset_in_the_same_step():
    environment = CounterEnv([[episode(2), episode(3)]], same_step_reset=True)
    steps = [environment.reset()] + [environment.step(np.zeros(1, np.int32)) for _ in range(5)]
    assert [step.observation[0] for step in steps] == [0, 1, 3, 4, 5, 7]
    assert [step.end[0] for step in steps] == [0, 0, End.GAME_OVER, 0, 0, End.GAME_OVER]
    assert [step.first[0] for step in steps] == [True, False, False, False, False, False]


def test_both_flags_at_once_and_a_marked_reset_reward():
    both = Episode((1.0,), (End.TIME_LIMIT, End.GAME_OVER))
    environment = CounterEnv([[both]], reset_reward=777.0)
    environment.reset()
    end, first = (environment.step(np.zeros(1, np.int32)) for _ in range(2))
    assert (end.end[0], end.discount[0]) == (End.GAME_OVER, 0)
    assert (first.first[0], first.reward[0]) == (True, 777.0)


def test_the_recorder_copies_rows_and_cuts_windows():
    recorder = Recorder(num_streams=2, window=3, ready_script=[False])
    step = row(0)
    recorder.append(0, step)
    step.observation[:] = 99
    for number in (1, 2, 3):
        recorder.append(0, row(number))
    recorder.append(1, row(7))
    recorder.insert(0, 0.5)
    assert recorder.inserted_items == 1
    (item,) = recorder.items
    assert (item.stream, item.priority) == (0, 0.5)
    assert item.steps.observation.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert item.steps.action.tolist() == [1, 2, 3]
    assert recorder.rows[0][0].observation.tolist() == [0, 0]
    assert [recorder.ready(0.1), recorder.ready(0.2)] == [False, True]
    assert recorder.ready_calls == [0.1, 0.2]


def test_the_recorder_refuses_what_a_replay_refuses():
    recorder = Recorder(num_streams=2, window=2)
    recorder.append(0, row(0))
    with pytest.raises(ReplayError, match="2 rows, but stream 0 has 1"):
        recorder.insert(0, 1.0)
    recorder.append(0, row(1))
    recorder.end_episode(0)
    recorder.append(0, row(2))
    with pytest.raises(ReplayError, match="2 rows, but stream 0 has 1"):
        recorder.insert(0, 1.0)
    recorder.append(0, row(3))
    for priority in (-1.0, np.nan, np.inf):
        with pytest.raises(ReplayError, match="priority"):
            recorder.insert(0, priority)
    with pytest.raises(ReplayError, match="observation"):
        recorder.append(1, row(0)._replace(observation=np.zeros(3, np.uint8)))
    with pytest.raises(ReplayError, match="reward"):
        recorder.append(1, row(0)._replace(reward=np.float64(1)))
    assert recorder.inserted_items == 0
