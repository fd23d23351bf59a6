"""A policy for users: it stacks frames itself, and restarts the stack where an episode begins."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from gorila_jax.environments import environment_spec
from gorila_jax.evaluation.evaluator import play_games
from gorila_jax.evaluation.policy import Policy, load_policy
from gorila_jax.runtime.configure import make_config
from gorila_jax.types import ConfigError, EnvironmentSpec
from tests.doubles import CounterEnv, episode
from tests.evaluation.runs import atari_config, initial_parameters, save_run, toy_config

SPEC = EnvironmentSpec("Numbers", (), np.dtype(np.int32), num_actions=10, frames_per_step=1, settings={})


def _numbers(frame_stack: int = 3, **arguments: float) -> Policy:
    config = toy_config(agent="tests.evaluation.runs:oldest_frame", env__frame_stack=frame_stack)
    return Policy(config, SPEC, {"bias": np.zeros(10, np.float32)}, **arguments)  # type: ignore[arg-type]


class TestStack:
    def test_one_environment(self) -> None:
        policy = _numbers()
        actions = [policy(np.int32(number)) for number in (1, 2, 3, 4, 5)]
        assert actions == [1, 1, 1, 2, 3]
        assert all(type(action) is int for action in actions)

    def test_reset_forgets_the_episode_before(self) -> None:
        policy = _numbers()
        for number in (1, 2, 3):
            policy(number)
        policy.reset()
        assert [policy(number) for number in (7, 8, 9, 9)] == [7, 7, 7, 8]

    def test_first_of_one_environment(self) -> None:
        policy = _numbers()
        assert [policy(1), policy(2), policy(7, first=True), policy(8)] == [1, 1, 7, 7]

    def test_batch_restarts_each_environment_for_itself(self) -> None:
        policy = _numbers(frame_stack=2)
        nothing = np.array([False, False])
        assert policy(np.array([1, 5], np.int32)).tolist() == [1, 5]
        assert policy(np.array([2, 6], np.int32), first=nothing).tolist() == [1, 5]
        assert policy(np.array([3, 7], np.int32), first=np.array([False, True])).tolist() == [2, 7]
        actions = policy(np.array([4, 8], np.int32), first=nothing)
        assert actions.tolist() == [3, 7]
        assert actions.dtype == np.int32

    def test_another_number_of_environments_needs_a_reset(self) -> None:
        policy = _numbers()
        policy(np.array([1, 2], np.int32))
        with pytest.raises(ValueError, match=r"3 observations after 2: call reset\(\)"):
            policy(np.array([1, 2, 3], np.int32))
        policy.reset()
        assert policy(np.array([1, 2, 3], np.int32)).tolist() == [1, 2, 3]


class TestMemory:
    def _first_number(self) -> Policy:
        config = toy_config(
            agent="tests.evaluation.runs:first_number",
            env__frame_stack=1,
            network__last_action_and_reward=False,
        )
        return Policy(config, SPEC, {"bias": np.zeros(10, np.float32)})

    def test_it_lasts_for_an_episode_and_no_longer(self) -> None:
        policy = self._first_number()
        assert [policy(number) for number in (3, 5, 9)] == [3, 3, 3]
        policy.reset()
        assert [policy(number) for number in (7, 8)] == [7, 7]
        assert [policy(2, first=True), policy(6)] == [2, 2]

    def test_each_environment_of_a_batch_has_its_own(self) -> None:
        policy = self._first_number()
        assert policy(np.array([1, 5], np.int32)).tolist() == [1, 5]
        assert policy(np.array([8, 8], np.int32)).tolist() == [1, 5]
        assert policy(np.array([2, 9], np.int32), first=np.array([False, True])).tolist() == [1, 9]
        assert policy(np.array([0, 0], np.int32)).tolist() == [1, 9]
        policy.reset()
        assert policy(np.array([4, 6, 8], np.int32)).tolist() == [4, 6, 8]

    def test_evaluation_carries_it_and_starts_every_episode_afresh(self) -> None:
        scripts = [[episode(3), episode(2)], [episode(4)]]
        environment = CounterEnv(scripts, num_actions=10)
        play_games(environment, self._first_number().act, [2, 1])
        # Observations count on through the episodes: the second one of the first begins with 4.
        assert [int(actions[0]) for actions in environment.actions[:6]] == [0, 0, 0, 0, 4, 4]

    def test_what_the_agent_sees_of_its_last_step(self) -> None:
        """A linear network: the last reward speaks for action 1 and against action 2, and the last action
        for the next one."""
        flat = {
            "network.core": "none",
            "network.hidden_units": (),
            "network.dueling": False,
            "sequence.burn_in_steps": 0,
        }
        config = make_config("r2d2", "Catch-v0", overrides=flat)
        spec = environment_spec("Catch-v0", config.env)
        parameters = jax.tree_util.tree_map(np.zeros_like, initial_parameters(config))
        (head,) = parameters.values()
        last_action, last_reward = head["w"][-1 - spec.num_actions : -1], head["w"][-1]
        last_reward[:] = [0.0, 1.0, -1.0]
        last_action[:] = 0.1 * np.roll(np.eye(3), 1, axis=1)
        policy = Policy(config, spec, parameters)
        blank = np.zeros(spec.observation_shape, np.float32)
        assert policy(blank, reward=5.0) == 0  # an episode begins: nothing came before
        assert [policy(blank, reward=0.0) for _ in range(4)] == [1, 2, 0, 1]
        assert [policy(blank, reward=reward) for reward in (-5.0, 5.0, 0.0)] == [2, 1, 2]
        assert policy(blank, first=True) == 0
        with pytest.raises(ValueError, match=r"sees the reward of its last action"):
            policy(blank)
        with pytest.raises(ValueError, match="a reward of nan"):
            policy(blank, reward=float("nan"))

    def test_a_refused_call_leaves_it_as_it_was(self) -> None:
        policy = self._first_number()
        assert policy(3) == 3
        policy.reset()
        with pytest.raises(ValueError, match="could not convert"):
            policy(5, reward="much")
        assert [policy(7), policy(8)] == [7, 7]


class TestRefusals:
    def test_shape(self) -> None:
        config = atari_config("Pong-v5")
        policy = Policy(config, environment_spec("Pong-v5", config.env), initial_parameters(config))
        with pytest.raises(ValueError, match=r"shape \(4, 80, 80\); \(84, 84\) or \(E, 84, 84\) is right"):
            policy(np.zeros((4, 80, 80), np.uint8))
        with pytest.raises(ValueError, match="type float32; uint8 is right"):
            policy(np.zeros((84, 84), np.float32))

    @pytest.mark.parametrize("epsilon", [-0.1, 1.1, float("nan")])
    def test_epsilon(self, epsilon: float) -> None:
        with pytest.raises(ConfigError, match="epsilon"):
            _numbers(epsilon=epsilon)

    def test_full_action_set_against_the_minimal_one(self) -> None:
        full = atari_config("Pong-v5", env__full_action_set=True)
        parameters = initial_parameters(full)
        minimal = atari_config("Pong-v5")
        assert environment_spec("Pong-v5", full.env).num_actions == 18
        with pytest.raises(ConfigError, match="among 18 actions, but Pong-v5 as set here has 6"):
            Policy(minimal, environment_spec("Pong-v5", minimal.env), parameters)

    def test_another_network_is_named(self) -> None:
        config = toy_config(network__hidden_units=(8,))
        spec = environment_spec("Catch-v0", config.env)
        with pytest.raises(ConfigError, match=r"is \(64, 3\), needed is \(8, 3\)"):
            Policy(config, spec, initial_parameters(toy_config(network__hidden_units=(64,))))


class TestExploration:
    def test_greedy_is_deterministic_and_one_is_uniform(self) -> None:
        observations = np.full(500, 4, np.int32)
        assert set(_numbers()(observations)) == {4}
        counts = np.bincount(_numbers(epsilon=1.0, seed=1)(observations), minlength=10)
        assert counts.min() > 20  # 50 expected of each

    def test_the_seed_decides(self) -> None:
        observations = np.full(50, 4, np.int32)
        first, again, other = (_numbers(epsilon=0.5, seed=seed)(observations).tolist() for seed in (1, 1, 2))
        assert first == again != other

    def test_calls_do_not_repeat_each_other(self) -> None:
        policy = _numbers(epsilon=1.0)
        observations = np.full(50, 4, np.int32)
        assert policy(observations).tolist() != policy(observations).tolist()


class TestLoad:
    def test_acts_as_the_network_that_was_saved(self, tmp_path: Path) -> None:
        config = toy_config()
        parameters = initial_parameters(config, seed=3)
        save_run(tmp_path, config, parameters)
        spec = environment_spec("Catch-v0", config.env)
        observations = np.random.default_rng(0).random((64, *spec.observation_shape), np.float32)
        wanted = Policy(config, spec, parameters)(observations)
        assert load_policy(tmp_path)(observations).tolist() == wanted.tolist()
        assert len(set(wanted.tolist())) > 1

    def test_a_checkpoint_by_its_frames(self, tmp_path: Path) -> None:
        config = toy_config()
        spec = environment_spec("Catch-v0", config.env)
        observations = np.random.default_rng(0).random((64, *spec.observation_shape), np.float32)
        for frames in (100, 200):
            save_run(tmp_path, config, initial_parameters(config, seed=frames), frames=frames)
        early, newest = (
            Policy(config, spec, initial_parameters(config, seed=frames))(observations).tolist()
            for frames in (100, 200)
        )
        assert early != newest
        assert load_policy(tmp_path, 100)(observations).tolist() == early
        assert load_policy(tmp_path)(observations).tolist() == newest
        with pytest.raises(ConfigError, match=r"no checkpoint of 300 frames.*\[100, 200\]"):
            load_policy(tmp_path, 300)

    def test_later_changes_do_not_reach_it(self) -> None:
        config = toy_config(agent="tests.evaluation.runs:oldest_frame")
        parameters = {"bias": np.zeros(10, np.float32)}
        policy = Policy(config, SPEC, parameters)
        parameters["bias"][9] = 1_000
        assert policy(3) == 3

    def test_compiles_once(self) -> None:
        policy = _numbers()
        for number in (1, 2, 3):
            policy(number)
        policy.reset()
        policy(np.array([4], np.int32))
        assert policy._act._cache_size() == 1  # type: ignore[attr-defined]
