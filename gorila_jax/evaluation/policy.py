"""A trained agent as a callable: observations in, actions out."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from gorila_jax.actor.policy import FrameStack, make_policy
from gorila_jax.agents import find_recipe
from gorila_jax.config import Config
from gorila_jax.environments import environment_spec
from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.types import ConfigError, EnvironmentSpec, EnvironmentStep, Inputs, Parameters

_ATARI_ACTIONS = 18  # of the full set


class Policy:
    """Epsilon-greedy over the Q values of one fixed set of parameters; keeps frame stack and memory itself.

        policy = load_policy("runs/pong")
        observation, _ = env.reset()
        policy.reset()  # the next observation begins an episode
        reward = 0.0
        while not done:
            action = policy(observation, reward=reward)
            observation, reward, ... = env.step(action)

    It serves one environment or a batch of E; the number may change at a `reset`. Acting happens on the
    host's CPU. The parameters are copied: whatever becomes of the given ones does not reach this policy.

    Args:
      config: of the run that the parameters come from.
      spec: of the environment that will be played.
      parameters: of the agent's network.
      epsilon: chance of a uniformly random action; 0 is greedy.
      seed: of those, at least 0. The same seed and observations give the same actions.

    Raises:
      ConfigError: the parameters belong to another network or number of actions, or epsilon is no chance.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        parameters: Parameters,
        *,
        epsilon: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon={epsilon}: from 0 to 1")
        if seed < 0:
            raise ConfigError(f"seed={seed}: at least 0")
        check_fit(config, spec, parameters)
        self.spec = spec
        self._epsilon = epsilon
        self._frame_stack = config.env.frame_stack
        self._sees_reward = config.network.last_action_and_reward
        self._network = find_recipe(config.agent).network(config, spec)
        self._act = make_policy(self._network)
        self._device = device = jax.local_devices(backend="cpu")[0]
        # On the CPU `device_put` may share a numpy array's memory, so that copies have to be made first.
        self._parameters = jax.device_put(jax.tree_util.tree_map(np.array, parameters), device)
        self._key = jax.device_put(jax.random.PRNGKey(seed), device)
        self._calls = 0
        self._stack: FrameStack | None = None  # None: every next observation begins an episode
        self._size = 0
        self._state: Any = None  # [E, K], as long as there is a stack
        self._actions = np.zeros(0, np.int32)  # [E], the last ones

    def reset(self) -> None:
        """Says that the next observation (of every environment) begins an episode."""
        self._stack = None

    def __call__(self, observation: Any, *, first: Any = None, reward: Any = None) -> Any:
        """Chooses an action for each observation; call it once per step of the environment.

        Args:
          observation: [*observation_shape], or [E, *observation_shape] of a batch, as `spec` has it and not
            stacked: one 84x84 frame on Atari.
          first: bool, or [E] bool: the observation begins an episode, so that nothing before it may be
            seen. After `reset` it does in any case. A batch that resets itself says so here.
          reward: that the last action brought, raw, or [E] of a batch; means nothing where an episode begins.
            Only agents that see their last reward (r2d2) need it.

        Returns:
          An int from 0 on; [E] int32 for a batch.

        Raises:
          ValueError: observations of another shape, type or number, a number that is not finite, or no reward
            for an agent that needs it. The policy is then as it was.
        """
        array = np.asarray(observation)
        single = array.shape == self.spec.observation_shape
        if single:
            array = array[None]
        self._check(array)
        size = len(array)
        begins = np.broadcast_to(np.asarray(False if first is None else first, bool), size)
        if self._stack is None:
            begins = np.ones(size, bool)
        if reward is None and self._sees_reward and not begins.all():
            raise ValueError("this agent sees the reward of its last action: policy(observation, reward=...)")
        rewards = np.broadcast_to(np.asarray(0.0 if reward is None else reward, np.float32), size)
        if not np.isfinite(rewards[~begins]).all():
            raise ValueError(f"a reward of {reward}")
        if self._stack is None:
            self._size = size
            self._stack = FrameStack(
                size, self._frame_stack, self.spec.observation_shape, self.spec.observation_dtype
            )
            state = self._network.initial_state(self._parameters, size)
            self._state = jax.device_put(state, self._device)
            self._actions = np.zeros(size, np.int32)
        inputs = Inputs(self._stack.push(array, begins), self._actions, rewards, begins)
        epsilons = np.full(size, self._epsilon, np.float32)
        decision = self._act(self._parameters, inputs, self._state, epsilons, self._key, self._calls)
        self._state, self._actions = decision.next_states, np.asarray(decision.actions)
        self._calls += 1
        return int(self._actions[0]) if single else self._actions

    def act(self, step: EnvironmentStep) -> np.ndarray:
        """Actions [E] int32 after a step, or a reset, of environments that reset themselves."""
        actions: np.ndarray = self(step.observation, first=step.first, reward=step.reward)
        return actions

    def _check(self, batch: np.ndarray) -> None:
        shape, dtype = self.spec.observation_shape, self.spec.observation_dtype
        if batch.ndim == 0 or batch.shape[1:] != shape or not len(batch):
            batched = ", ".join(map(str, ("E", *shape)))
            raise ValueError(f"observation of shape {batch.shape}; {shape} or ({batched}) is right")
        if not np.can_cast(batch.dtype, dtype, "same_kind"):
            raise ValueError(f"observation of type {batch.dtype}; {dtype} is right")
        if batch.dtype.kind == "f" and not np.isfinite(batch).all():
            raise ValueError("an observation holds numbers that are not finite")
        if self._stack is not None and len(batch) != self._size:
            raise ValueError(
                f"{len(batch)} observations after {self._size}: call reset() before the number changes"
            )


def load_policy(
    workdir: str | os.PathLike[str], checkpoint: int | None = None, *, epsilon: float = 0.0, seed: int = 0
) -> Policy:
    """The policy that a run has learned, from its workdir alone.

    Args:
      workdir: of the run; it may still be training there.
      checkpoint: frame count of the wanted one; by default the newest.
      epsilon, seed: see `Policy`.

    Raises:
      ConfigError: no workdir, no (such) checkpoint, or one that does not fit its environment any more.
      GorilaError: the checkpoint is damaged.
    """
    run = load_run(workdir, checkpoint)
    spec = environment_spec(run.config.environment, run.config.env)
    return Policy(run.config, spec, run.parameters, epsilon=epsilon, seed=seed)


def check_fit(config: Config, spec: EnvironmentSpec, parameters: Parameters) -> None:
    """Raises ConfigError unless the network for `spec` has the parameters' names and shapes."""
    given = {_name(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)}
    needed = _shapes(config, spec)
    if given == needed:
        return
    for num_actions in range(1, _ATARI_ACTIONS + 1):
        if _shapes(config, spec._replace(num_actions=num_actions)) == given:
            raise ConfigError(
                f"the checkpoint's agent chooses among {num_actions} actions, but {spec.name} as set here "
                f"has {spec.num_actions}: play the game and action set (env.full_action_set) of its training"
            )
    name = next(name for name in sorted({*given, *needed}) if given.get(name) != needed.get(name))
    raise ConfigError(
        f"the checkpoint does not fit the network of {config.agent} for {spec.name}: {name} is "
        f"{given.get(name, 'absent')}, needed is {needed.get(name, 'nothing of that name')}"
    )


def _shapes(config: Config, spec: EnvironmentSpec) -> dict[str, tuple[int, ...]]:
    shapes = jax.eval_shape(find_recipe(config.agent).network(config, spec).init, jax.random.PRNGKey(0))
    return {_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)
