"""The actor worker: one batch of environments, a policy, a replay writer, cached parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gorila_jax.actor.accumulator import Accumulator, ActorStep
from gorila_jax.actor.policy import FrameStack, Policy
from gorila_jax.actor.scores import Scores
from gorila_jax.types import Environment, EnvironmentStep, Episode, GorilaError, Inputs, Parameters


class ActorPorts(NamedTuple):
    """Everything an actor talks to."""

    ready: Callable[[float], bool]  # of the replay writer
    pull: Callable[[], tuple[int, Parameters]]
    epsilons: Callable[[int], np.ndarray]  # version of the parameters held, to [E] float32
    count_steps: Callable[[int], None]
    report: Callable[[Episode], None]
    close: Callable[[], None]  # of the replay writer


class Actor:
    """`step()` is one action in each of its environments.

    What a step brought goes to replay while the environments are busy with the next one: only then is the
    value of its observations known, which the first priorities are made of. So what the very last step of a
    run brought never becomes an item.

    Parameters are pulled before the first action and then every `parameter_period_steps` steps. A pull
    waits for the update under way, if there is one, and never for a newer version.
    """

    def __init__(
        self,
        index: int,
        environment: Environment,
        policy: Policy,
        accumulator: Accumulator,
        ports: ActorPorts,
        frame_stack: int,
        parameter_period_steps: int,
        max_abs_reward: float,
        key: Any,
        state_size: int = 0,
    ):
        """
        Args:
          index: of this actor among all.
          environment: E environments; they are this actor's to close.
          policy: chooses the actions.
          accumulator: takes every step, for replay.
          ports: everything else that it talks to.
          frame_stack: observations that the policy sees at once.
          parameter_period_steps: calls of `step` between two pulls.
          max_abs_reward: rewards are clipped to this in `Episode.training_return`; 0: not clipped.
          key: of all its randomness, a JAX key.
          state_size: K, of the network's recurrent state, which stays on the device between steps.
        """
        spec, size = environment.spec, environment.num_environments
        self.index = index
        self.parameter_version = -1  # of the parameters in use; -1 before the first pull
        self.steps = 0  # calls of `step` that acted
        self._environment = environment
        self._policy = policy
        self._accumulator = accumulator
        self._ports = ports
        self._parameter_period_steps = parameter_period_steps
        # Acting is latency-bound and small: it stays on the host's CPU beside the environments.
        self._device = jax.local_devices(backend="cpu")[0]
        self._key = jax.device_put(key, self._device)
        self._parameters: Parameters = None
        self._stack = FrameStack(size, frame_stack, spec.observation_shape, spec.observation_dtype)
        self._inputs: Inputs | None = None  # [E, ...], of the next actions; None before the first reset
        self._state = jax.device_put(np.zeros((size, state_size), np.float32), self._device)
        # What is not in replay yet: actions [E], Q values of them [E] and the answer of the environments.
        self._news: tuple[np.ndarray, np.ndarray, EnvironmentStep]
        self._scores = Scores(size, max_abs_reward)

    def step(self, timeout_s: float) -> bool:
        """Acts once; False when replay held the actor back for the whole timeout."""
        if not self._ports.ready(timeout_s):
            return False
        if self._inputs is None:
            size = self._environment.num_environments
            nothing = np.zeros(size, np.int32), np.zeros(size, np.float32)
            self._inputs = self._take(*nothing, self._environment.reset())
        if self.steps % self._parameter_period_steps == 0:
            self.parameter_version, parameters = self._ports.pull()
            self._parameters = jax.device_put(parameters, self._device)
        epsilons = self._ports.epsilons(self.parameter_version)
        decision = self._policy(self._parameters, self._inputs, self._state, epsilons, self._key, self.steps)
        actions, self._state = np.asarray(decision.actions), decision.next_states
        self._environment.send(actions)
        values, states = np.asarray(decision.values), np.asarray(decision.states)
        self._accumulator.observe(ActorStep(*self._news, values, states))
        step = self._environment.recv()
        self.steps += 1
        self._inputs = self._take(actions, np.asarray(decision.q_taken), step)
        self._ports.count_steps(int(np.count_nonzero(~step.first)))
        self._report_ends(step, epsilons)
        return True

    def close(self) -> None:
        try:
            self._ports.close()
        finally:
            self._environment.close()

    def _take(self, actions: np.ndarray, q_taken: np.ndarray, step: EnvironmentStep) -> Inputs:
        """Keeps the news for replay; returns what the next actions are chosen from."""
        if len(step.first) != len(actions):
            raise GorilaError(
                f"actor {self.index}: {len(actions)} actions, but {len(step.first)} environments answered"
            )
        self._news = (actions, q_taken, step)
        return Inputs(self._stack.push(step.observation, step.first), actions, step.reward, step.first)

    def _report_ends(self, step: EnvironmentStep, epsilons: np.ndarray) -> None:
        for game in self._scores.take(step):
            e = game.environment
            self._ports.report(
                Episode(self.index, e, game.score, game.steps, float(epsilons[e]), game.clipped_score)
            )
