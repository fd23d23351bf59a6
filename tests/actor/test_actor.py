"""The actor worker, with everything around it replaced by lists."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.actor.accumulator import TransitionAccumulator
from gorila_jax.actor.actor import Actor, ActorPorts
from gorila_jax.actor.policy import Decision, FrameStack, make_policy
from gorila_jax.networks.memoryless import memoryless
from gorila_jax.types import NO_STATE, End, GorilaError, Inputs
from tests.doubles import CounterEnv, Episode, Recorder, episode

NETWORK = memoryless(
    init=lambda key: {"bias": jnp.zeros(4)},
    apply=lambda parameters, stacks: jnp.zeros((stacks.shape[0], 4)) + parameters["bias"],
)


def decision(actions, q_taken, value):
    """Of a policy that remembers nothing."""
    size, nothing = len(actions), np.tile(NO_STATE, (len(actions), 1))
    numbers = (np.broadcast_to(np.float32(number), size) for number in (q_taken, value))
    return Decision(np.asarray(actions, np.int32), *numbers, nothing, nothing)


class Harness:
    """One actor on scripted environments; its ports append to lists."""

    def __init__(
        self, scripts, *, epsilon=0.0, ready_script=(), key=0, frame_stack=2, policy=None, max_abs_reward=1.0
    ):
        self.environment = CounterEnv(scripts, 0.99)
        self.recorder = Recorder(len(scripts), frame_stack + 1, ready_script)
        self.pulls, self.counts, self.episodes = 0, [], []
        ports = ActorPorts(
            ready=self.recorder.ready,
            pull=self._pull,
            epsilons=lambda version: np.full(len(scripts), epsilon, np.float32),
            count_steps=self.counts.append,
            report=self.episodes.append,
            close=self.recorder.close,
        )
        self.actor = Actor(
            index=3,
            environment=self.environment,
            policy=policy or make_policy(NETWORK),
            accumulator=TransitionAccumulator(self.recorder, len(scripts), frame_stack, 1),
            ports=ports,
            frame_stack=frame_stack,
            parameter_period_steps=5,
            max_abs_reward=max_abs_reward,
            key=jax.random.PRNGKey(key),
        )

    def _pull(self):
        self.pulls += 1
        return 10 * self.pulls, {"bias": jnp.array([0.0, 0.0, 1.0, 0.0])}

    def run(self, num_steps):
        for _ in range(num_steps):
            assert self.actor.step(0.0)
        return self


def test_steps_are_counted_without_the_ignored_ones():
    harness = Harness([[episode(3)], [episode(5)]]).run(12)
    assert sum(harness.counts) == 9 + 10  # 12 steps less the resets after 3, 7, 11 and after 5, 11


def test_parameters_are_pulled_before_the_first_action_and_then_every_period():
    harness = Harness([[episode(9)]]).run(11)
    assert harness.pulls == 3
    assert harness.actor.parameter_version == 30
    assert all(actions == [2] for actions in harness.environment.actions)  # greedy in what was pulled


def test_a_step_that_replay_holds_back_touches_nothing():
    harness = Harness([[episode(9)]], ready_script=[False, False])
    assert not harness.actor.step(0.0)
    assert not harness.actor.step(0.0)
    assert not harness.environment.steps
    assert harness.actor.step(0.0)


def test_the_policy_sees_the_reset_frame_first_and_never_the_old_game():
    seen = []

    def policy(parameters, inputs, *rest):
        seen.append(inputs.stack.copy())
        return decision(np.zeros(len(inputs.stack)), 0.0, 0.0)

    Harness([[episode(3)]], policy=policy).run(6)
    # Numbers 0 to 3 are the first game, 4 to 7 the second. The action on the end frame is ignored.
    assert [stack[0].tolist() for stack in seen] == [[0, 0], [0, 1], [1, 2], [2, 3], [4, 4], [4, 5]]


def test_a_score_is_raw_spans_lives_and_comes_with_its_epsilon():
    lives = [Episode((10.0, -3.0), (End.LIFE_LOSS,)), Episode((5.0,), (End.GAME_OVER,))]
    harness = Harness([lives], epsilon=0.25).run(4)
    (game,) = harness.episodes
    assert (game.actor, game.environment, game.episode_return, game.steps) == (3, 0, 12.0, 3)
    assert game.training_return == 1.0
    assert game.epsilon == 0.25


def test_other_keys_give_other_actions_and_the_same_key_the_same():
    def actions(key):
        return np.array(Harness([[episode(99)]] * 3, epsilon=1.0, key=key).run(30).environment.actions)

    assert (actions(0) == actions(0)).all()
    streams = [actions(key) for key in range(4)]
    assert len({stream.tobytes() for stream in streams}) == 4
    # Environments of one actor differ too, and all actions come up.
    assert (streams[0][:, 0] != streams[0][:, 1]).any()
    assert set(streams[0].ravel()) == {0, 1, 2, 3}


def test_epsilon_is_the_share_of_random_actions():
    policy = make_policy(NETWORK)
    parameters = {"bias": jnp.array([0.0, 0.0, 1.0, 0.0])}
    epsilons = np.linspace(0, 1, 5, dtype=np.float32).repeat(2000)
    size = len(epsilons)
    nothing = np.zeros(size, np.int32), np.zeros(size, np.float32), np.zeros(size, bool)
    inputs = Inputs(np.zeros((size, 1, 1), np.float32), *nothing)
    chosen = policy(parameters, inputs, np.zeros((size, 0)), epsilons, jax.random.PRNGKey(0), 0)
    actions = np.asarray(chosen.actions)
    assert np.asarray(chosen.q_taken).tolist() == (actions == 2).tolist()
    assert (np.asarray(chosen.values) == 1).all()
    greedy = (actions == 2).reshape(5, 2000)
    # Of the random actions a quarter is the greedy one. Four standard deviations of 2000 draws.
    assert greedy.mean(axis=1) == pytest.approx(1 - 0.75 * np.linspace(0, 1, 5), abs=0.045)
    assert greedy[0].all()


def test_a_frame_stack_hands_out_arrays_that_stay_as_they_are():
    stack = FrameStack(1, 3, (), np.dtype(np.int32))
    first = stack.push(np.array([7], np.int32), np.array([True]))
    second = stack.push(np.array([8], np.int32), np.array([False]))
    assert first.tolist() == [[7, 7, 7]]
    assert second.tolist() == [[7, 7, 8]]


def test_an_empty_answer_of_the_environments_is_an_error_and_reaches_nobody():
    harness = Harness([[episode(9)]] * 2)
    harness.environment._empty_at = 1
    harness.run(1)
    with pytest.raises(GorilaError, match="actor 3: 2 actions, but 0 environments answered"):
        harness.actor.step(0.0)
    # Two rows of the first observation's stack, and the answer before the empty one.
    assert [[row.observation for row in stream] for stream in harness.recorder.rows] == [[0, 0, 1]] * 2


def test_rows_reach_replay_while_the_environments_run_with_the_values_of_the_next_decision():
    log = []

    def policy(parameters, inputs, *rest):
        newest = inputs.stack[:, -1].astype(np.float32)
        return decision(np.ones(len(newest)), newest + 0.5, newest + 100)

    harness = Harness([[episode(9)]], policy=policy)
    environment, recorder = harness.environment, harness.recorder

    def logged(name, call):
        return lambda *args: (log.append(name), call(*args))[1]

    for name, owner in (("send", environment), ("recv", environment), ("insert", recorder)):
        setattr(owner, name, logged(name, getattr(owner, name)))
    harness.run(3)
    assert log == ["send", "recv", "send", "insert", "recv", "send", "insert", "recv"]
    # From number i the actor went to i + 1 for a reward of 1: 1 + 0.99 (i + 1 + 100) - (i + 0.5).
    assert [item.priority for item in recorder.items] == pytest.approx(
        [1 + 0.99 * 101 - 0.5, 1 + 0.99 * 102 - 1.5], rel=1e-5
    )
