"""Whole games, raw scores, as many from every environment as was settled before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gorila_jax.actor.scores import Game
from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.evaluation.evaluator import (
    Evaluation,
    default_epsilon,
    evaluate,
    play_games,
    result_record,
    split_evenly,
)
from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.types import ConfigError, End, EnvironmentSpec, EnvironmentStep, GorilaError
from tests.doubles import CounterEnv, Episode, episode
from tests.evaluation.runs import atari_config, initial_parameters, save_run, toy_config


def _still(step: EnvironmentStep) -> np.ndarray:
    return np.zeros(len(step.first), np.int32)


def _scores(games: list[Game]) -> list[float]:
    return [game.score for game in games]


def _game(score: float, steps: int, end: End = End.GAME_OVER) -> Game:
    """Of environment 0, with rewards that nobody clips."""
    return Game(0, score, steps, end, score)


class TestPlayGames:
    def test_scores_steps_and_ends(self) -> None:
        scripts = [[Episode((1, -2, 4)), Episode((8, 16), (End.TIME_LIMIT,))]]
        games = play_games(CounterEnv(scripts, reset_reward=1000), _still, [3])
        assert games == [
            _game(1 - 2 + 4, 3),
            _game(8 + 16, 2, End.TIME_LIMIT),
            _game(1 - 2 + 4, 3),
        ]

    def test_a_game_is_all_of_its_lives(self) -> None:
        lives = [Episode((1, 2), (End.LIFE_LOSS,)), Episode((4,), (End.LIFE_LOSS,)), Episode((8, 16))]
        games = play_games(CounterEnv([lives], reset_reward=1000), _still, [2])
        assert games == [_game(1 + 2 + 4 + 8 + 16, 5)] * 2

    def test_short_games_are_not_favoured(self) -> None:
        environment = CounterEnv([[episode(2)], [episode(20)]])
        seen: list[Game] = []
        games = play_games(environment, _still, [2, 2], on_game=seen.append)
        assert _scores(games) == [2, 2, 20, 20]
        assert _scores(seen) == [2, 2, 20, 20]  # what went on in environment 0 meanwhile does not count

    def test_the_first_games_of_each_environment_count(self) -> None:
        scripts = [[episode(1), episode(2), episode(3)], [episode(9), episode(1), episode(1)]]
        assert _scores(play_games(CounterEnv(scripts), _still, [3, 1])) == [1, 2, 3, 9]

    def test_the_policy_is_told_where_episodes_begin(self) -> None:
        told: list[list[bool]] = []

        def policy(step: EnvironmentStep) -> np.ndarray:
            told.append(step.first.tolist())
            return _still(step)

        play_games(CounterEnv([[episode(1)], [episode(2)]]), policy, [2, 1])
        assert told == [[True, True], [False, False], [True, False]]

    def test_out_of_time(self) -> None:
        asked = itertools.count()
        with pytest.raises(GorilaError, match="after 2 of 4 games"):
            play_games(
                CounterEnv([[episode(2)], [episode(20)]]),
                _still,
                [2, 2],
                out_of_time=lambda: next(asked) == 10,
            )


@pytest.mark.parametrize(
    ("episodes", "size", "wanted"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (3, 3, [1, 1, 1]), (5, 1, [5])]
)
def test_split_evenly(episodes: int, size: int, wanted: list[int]) -> None:
    assert split_evenly(episodes, size) == wanted


def test_statistics_are_of_all_games() -> None:
    games = tuple(_game(score, 1) for score in (1.0, 2.0, 6.0))
    spec = EnvironmentSpec("Counter", (), np.dtype(np.int32), 2, 1, {})
    evaluation = Evaluation(games, 0.0, 0, 1, spec)
    assert evaluation.mean == 3
    assert evaluation.standard_deviation == pytest.approx(((4 + 1 + 9) / 3) ** 0.5)


def test_default_epsilon() -> None:
    assert default_epsilon("pong") == 0.05
    assert default_epsilon("Catch-v0") == 0
    assert default_epsilon("my_module:factory") == 0


class _LifeCounter:
    """Passes an environment on and counts the lives lost in environment 0 before its game was over."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.spec, self.num_environments = environment.spec, environment.num_environments
        self.ends: list[End] = []

    def reset(self) -> EnvironmentStep:
        return self._environment.reset()

    def step(self, actions: np.ndarray) -> EnvironmentStep:
        step = self._environment.step(actions)
        if step.end[0]:
            self.ends.append(End(step.end[0]))
        return step

    def close(self) -> None:
        self._environment.close()


class TestAtari:
    def test_breakout_is_one_game_of_five_lives(self) -> None:
        """Even where the environment calls each life an episode."""
        config = atari_config("Breakout-v5", env__life_loss_is_end=True)
        environment = _LifeCounter(
            make_environment("Breakout-v5", config.env, seed=0, num_environments=1, training=True)
        )
        random = np.random.default_rng(0)
        games = play_games(environment, lambda step: random.integers(0, 4, 1), [1])
        environment.close()
        assert environment.ends == [End.LIFE_LOSS] * 4 + [End.GAME_OVER]
        assert len(games) == 1

    def test_the_training_flag_makes_no_difference(self) -> None:
        played = []
        for flag in (True, False):
            config = atari_config("Breakout-v5", env__life_loss_is_end=flag)
            evaluation = evaluate(config, initial_parameters(config), episodes=1, epsilon=1.0)
            assert evaluation.spec.settings["life_loss_is_end"] is False
            played.append(evaluation.games)
        assert played[0] == played[1]
        assert {game.end for game in played[0]} == {End.GAME_OVER}

    def test_greedy_that_never_serves_ends_by_the_frame_cap(self) -> None:
        config = atari_config("Breakout-v5", env__max_frames_per_episode=400)
        nothing = jax.tree_util.tree_map(np.zeros_like, initial_parameters(config))  # always action 0, no-op
        evaluation = evaluate(config, nothing, episodes=2, epsilon=0.0)
        assert [(game.end, game.score) for game in evaluation.games] == [(End.TIME_LIMIT, 0)] * 2
        assert {game.steps for game in evaluation.games} == {100}

    def test_scores_are_raw(self) -> None:
        """Ms Pac-Man pays 10 for a pill, whatever the learner clips rewards to."""
        config = atari_config("MsPacman-v5", env__max_frames_per_episode=800, learner__max_abs_reward=1.0)
        (game,) = evaluate(config, initial_parameters(config), episodes=1, epsilon=1.0).games
        assert game.score >= 50
        assert game.score % 10 == 0

    def test_the_action_set_of_another_training_is_refused(self) -> None:
        parameters = initial_parameters(atari_config("Pong-v5", env__full_action_set=True))
        with pytest.raises(ConfigError, match="among 18 actions, but Pong-v5 as set here has 6"):
            evaluate(atari_config("Pong-v5"), parameters, episodes=1)


class TestCatch:
    def test_before_saving_and_after_loading(self, tmp_path: Path) -> None:
        config = toy_config()
        parameters = initial_parameters(config)
        before = evaluate(config, parameters, episodes=40, epsilon=0.5, seed=5)
        run = load_run(save_run(tmp_path, config, parameters))
        assert evaluate(run.config, run.parameters, episodes=40, epsilon=0.5, seed=5).games == before.games
        assert before.standard_deviation > 0  # wins and losses: the scores could have differed
        other = evaluate(config, initial_parameters(config, seed=1), episodes=40, seed=5)
        assert _scores(list(other.games)) != _scores(list(before.games))

    def test_one_version_serves_the_whole_round(self) -> None:
        config = toy_config()
        parameters = jax.tree_util.tree_map(np.array, initial_parameters(config))

        def spoil(game: Game) -> None:
            for leaf in jax.tree_util.tree_leaves(parameters):
                leaf[...] = 0

        undisturbed = evaluate(config, parameters, episodes=30, num_environments=2)
        assert evaluate(config, parameters, episodes=30, num_environments=2, on_game=spoil).games == (
            undisturbed.games
        )
        assert evaluate(config, parameters, episodes=30, num_environments=2).games != undisturbed.games

    def test_never_more_environments_than_games(self) -> None:
        config = toy_config()
        evaluation = evaluate(config, initial_parameters(config), episodes=3, num_environments=50)
        assert [game.environment for game in evaluation.games] == [0, 1, 2]
        assert evaluation.num_environments == 3

    def test_the_clock_ends_a_round(self) -> None:
        seconds = itertools.count(1000, 10)
        config = toy_config()
        with pytest.raises(GorilaError, match="after 0 of 100 games"):
            evaluate(
                config,
                initial_parameters(config),
                episodes=100,
                clock=lambda: float(next(seconds)),
                max_minutes=1.0,
            )
        assert next(seconds) == 1000 + 10 * 8  # the start, and 10 to 70 seconds later: 60 are not too many

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"episodes": 0}, "episodes=0"),
            ({"episodes": 1, "epsilon": 1.5}, "epsilon=1.5"),
            ({"episodes": 1, "seed": -1}, "seed=-1"),
            ({"episodes": 1, "num_environments": 0}, "num_environments=0"),
            ({"episodes": 1, "max_minutes": 5.0}, "needs a clock"),
            ({"episodes": 1, "max_minutes": 0.0, "clock": lambda: 0.0}, "max_minutes=0.0"),
        ],
    )
    def test_refusals(self, arguments: dict[str, Any], message: str) -> None:
        config = toy_config()
        with pytest.raises(ConfigError, match=message):
            evaluate(config, initial_parameters(config), **arguments)


def test_the_record_tells_the_whole_protocol(tmp_path: Path) -> None:
    config: Config = atari_config(
        "Pong-v5",
        env__sticky_action_probability=0.25,
        env__full_action_set=True,
        env__noop_max=7,
        env__max_frames_per_episode=80,
    )
    run = load_run(save_run(tmp_path, config, initial_parameters(config), frames=400, version=7))
    evaluation = evaluate(run.config, run.parameters, episodes=3, seed=4, num_environments=2)
    record = json.loads(json.dumps(result_record(run, evaluation, {"jax": "1"})))
    assert record["returns"] == [game.score for game in evaluation.games]
    assert len(record["returns"]) == record["episodes"] == 3
    expected = {
        "environment": "Pong-v5",
        "agent": "dqn",
        "frames_trained": 400,
        "parameters_version": 7,
        "ended_by_time_limit": 3,
        "epsilon": 0.05,
        "seed": 4,
        "num_environments": 2,
        "frames_per_step": 4,
        "frame_stack": 4,
        "versions": {"jax": "1"},
    }
    assert record | expected == record
    protocol = {
        "sticky_action_probability": 0.25,
        "full_action_set": True,
        "num_actions": 18,
        "noop_max": 7,
        "life_loss_is_end": False,
        "max_frames_per_episode": 80,
        "frame_skip": 4,
        "reward_clip": False,
        "fire_on_reset": False,
    }
    assert record["protocol"] | protocol == record["protocol"]
