"""Ends and resets of EnvPool: facts that everything after it relies on, and what we make of them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.types import ConfigError, End, EnvironmentSpec, EnvironmentStep, GorilaError
from tests.environments.pools import field, make, play


@pytest.fixture(scope="module")
def breakout() -> tuple[list[EnvironmentStep], dict]:
    """5,000 steps of Breakout with life-loss ends, and a limit of 200 steps so that all ends occur."""
    return play(make("Breakout-v5", size=8, max_frames_per_episode=800), steps=625)


def test_every_end_has_exactly_one_label(breakout):
    trace, raw = breakout
    end = field(trace, "end")
    np.testing.assert_array_equal(end != End.NONE, raw["terminated"] | raw["truncated"])
    np.testing.assert_array_equal(end == End.GAME_OVER, raw["game_over"])
    np.testing.assert_array_equal(end == End.TIME_LIMIT, raw["truncated"] & ~raw["game_over"])
    np.testing.assert_array_equal(end == End.LIFE_LOSS, raw["terminated"] & ~raw["game_over"])
    for kind in End:
        assert np.any(end == kind), kind


def test_discount_is_zero_after_game_over_and_life_loss_only(breakout):
    trace, _ = breakout
    expected = np.where(np.isin(field(trace, "end"), (End.NONE, End.TIME_LIMIT)), np.float32(0.99), 0)
    np.testing.assert_array_equal(field(trace, "discount"), expected)


def test_reset_steps_follow_ends_and_hold_nothing(breakout):
    trace, raw = breakout
    end, first = field(trace, "end"), field(trace, "first")
    np.testing.assert_array_equal(first[1:], end[:-1] != End.NONE)
    assert not first[0].any()
    assert not raw["reward"][first].any()
    assert not end[first].any()
    # Why the step counter cannot tell a reset step: a life loss leaves it where it was.
    after_life_loss = end[:-1] == End.LIFE_LOSS
    assert np.all(raw["elapsed_step"][1:][after_life_loss] > 0)
    assert np.all(raw["elapsed_step"][1:][first[1:] & ~after_life_loss] == 0)


def test_lives_run_down_before_the_game_starts_anew(breakout):
    trace, raw = breakout
    end = field(trace, "end")
    for e in range(8):
        changes = raw["lives"][np.flatnonzero(np.diff(raw["lives"][:, e], prepend=-1)), e]
        assert changes[0] == 5
        for before, after in itertools.pairwise(changes):
            assert after == before - 1 or after == 5
        for t in np.flatnonzero(end[:-1, e] == End.LIFE_LOSS):
            assert raw["lives"][t + 1, e] <= raw["lives"][t, e] < 5
        for t in np.flatnonzero(end[:-1, e] == End.GAME_OVER):
            assert raw["lives"][t, e] == 0
            assert raw["lives"][t + 1, e] == 5
    assert np.any(end == End.GAME_OVER)


def test_a_new_game_shows_nothing_of_the_old_one(breakout):
    trace, _ = breakout
    end, observation = field(trace, "end"), field(trace, "observation")
    fresh = trace[0].observation[0]  # Breakout stands still until the ball is served
    differs = np.any(observation[1:] != fresh, axis=(2, 3))
    assert not np.any(differs[np.isin(end[:-1], (End.GAME_OVER, End.TIME_LIMIT))])
    # After a life loss the same game goes on: the number of balls left is another.
    assert np.all(differs[end[:-1] == End.LIFE_LOSS])


def test_evaluation_plays_whole_games():
    training = make("Breakout-v5")
    assert training.spec.settings["life_loss_is_end"] is True
    training.close()
    evaluation = make("Breakout-v5", size=4, training=False)
    assert evaluation.spec.settings["life_loss_is_end"] is False
    trace, raw = play(evaluation, steps=400)
    end = field(trace, "end")
    assert set(end.ravel()) == {End.NONE, End.GAME_OVER}
    assert np.all(raw["lives"][end == End.GAME_OVER] == 0)


def test_life_loss_is_an_end_only_where_asked_for():
    trace, raw = play(make("Breakout-v5", size=2, life_loss_is_end=False), steps=200)
    assert np.any(np.diff(raw["lives"], axis=0) == -1)
    assert not np.any(field(trace, "end") == End.LIFE_LOSS)


@pytest.mark.slow
def test_atlantis_ends_are_games_and_not_zero_lives():
    trace, raw = play(make("Atlantis-v5", size=4, training=False), steps=2_500)
    ends = np.isin(field(trace, "end"), (End.GAME_OVER, End.TIME_LIMIT)).sum()
    restarts = (raw["elapsed_step"] == 0).sum() + (raw["game_over"][-1] | raw["truncated"][-1]).sum()
    assert ends == restarts > 0
    assert (raw["lives"] == 0).sum() > ends  # what code that watches the lives would count


@pytest.mark.slow
def test_pong_has_one_end_per_game():
    trace, _ = play(make("Pong-v5", size=2), steps=1_300)
    end, reward = field(trace, "end"), field(trace, "reward")
    assert np.all(np.isin(end, (End.NONE, End.GAME_OVER)))
    for e in range(2):
        stops = np.flatnonzero(end[:, e])
        assert len(stops) >= 1
        for start, stop in zip([0, *(stops + 1)], stops, strict=False):
            points = reward[start : stop + 1, e]
            assert max((points > 0).sum(), (points < 0).sum()) == 21


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 10), (1, 40)])
def test_the_frame_limit_is_in_frames(frame_skip, steps):
    trace, _ = play(make("Pong-v5", frame_skip=frame_skip, max_frames_per_episode=40), steps=steps + 1)
    end = field(trace, "end")[:, 0]
    assert end.tolist() == [End.NONE] * (steps - 1) + [End.TIME_LIMIT, End.NONE]


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 27_000), (1, 108_000)])
def test_the_usual_limit_is_108000_frames(frame_skip, steps):
    spec = environment_spec("pong", EnvironmentConfig(frame_skip=frame_skip))
    assert spec.frames_per_step == spec.settings["frame_skip"] == frame_skip
    assert spec.settings["max_steps_per_episode"] == steps
    assert spec.settings["max_frames_per_episode"] == 108_000


def test_a_time_limit_keeps_gamma():
    environment = make("CartPole-v1", max_steps_per_episode=5, discount=0.9)
    trace = [environment.reset()] + [environment.step(np.array([t % 2], np.int32)) for t in range(8)]
    environment.close()
    assert trace[5].end[0] == End.TIME_LIMIT
    assert trace[5].discount[0] == np.float32(0.9)
    assert trace[6].first[0]


def test_rewards_are_raw():
    trace, _ = play(make("MsPacman-v5", size=4), steps=100)
    reward = field(trace, "reward")
    assert reward.max() >= 10
    assert not np.any(reward % 10)


def test_a_game_over_wins_over_a_time_limit_in_the_same_step():
    step = _scripted([{"terminated": 1, "truncated": 1, "info_terminated": 1}])[0]
    assert step.end[0] == End.GAME_OVER
    assert step.discount[0] == 0


def _scripted(results: list[dict], size: int = 1) -> list[EnvironmentStep]:
    """What a PoolEnvironment makes of scripted results of EnvPool."""
    queue = list(results)

    def answer(terminated=0, truncated=0, info_terminated=0, elapsed=1, length=size, env_id=None):
        info = {
            "env_id": np.arange(length) if env_id is None else env_id,
            "elapsed_step": np.full(length, elapsed),
            "terminated": np.full(length, info_terminated),
        }
        flags = np.full(length, bool(terminated)), np.full(length, bool(truncated))
        return np.zeros((length, 1, 2, 2), np.uint8), np.zeros(length, np.float32), *flags, info

    def reset() -> tuple:
        observation, _, _, _, info = answer(elapsed=0)
        return observation, info

    spec = EnvironmentSpec("Scripted", (2, 2), np.dtype(np.uint8), 2, 4, {})
    pool = SimpleNamespace(
        config={"num_envs": size},
        reset=reset,
        send=lambda _: None,
        recv=lambda: answer(**queue.pop(0)),
        close=lambda: None,
    )
    environment = PoolEnvironment(pool, spec, discount=0.99)
    environment.reset()
    return [environment.step(np.zeros(size, np.int32)) for _ in results]


def test_an_empty_batch_is_an_error():
    with pytest.raises(GorilaError, match="Scripted: EnvPool returned 0 results for 2 environments"):
        _scripted([{}, {"length": 0}], size=2)


def test_results_out_of_order_are_an_error():
    with pytest.raises(GorilaError, match="out of order"):
        _scripted([{"env_id": np.array([1, 0])}], size=2)


@pytest.mark.parametrize(
    "results",
    [
        [{"terminated": 1, "info_terminated": 1, "elapsed": 0}],  # already reset where the end is told
        [{"truncated": 1, "elapsed": 5}, {"elapsed": 1}],  # runs on where the reset should be
        [{"elapsed": 3}, {"elapsed": 0}],  # starts anew without an end
    ],
)
def test_another_reset_style_is_an_error(results):
    with pytest.raises(ConfigError, match="does not reset in the step after an end"):
        _scripted(results)


def test_the_expected_reset_style_is_none():
    steps = _scripted(
        [
            {"terminated": 1, "info_terminated": 1, "elapsed": 5},
            {"elapsed": 0},
            {"terminated": 1, "elapsed": 5},
            {"elapsed": 5},  # after a life loss
        ]
    )
    assert [step.end[0] for step in steps] == [End.GAME_OVER, End.NONE, End.LIFE_LOSS, End.NONE]
    assert [step.first[0] for step in steps] == [False, True, False, True]
