"""Any environment that a user brings as a `gymnasium.Env`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments.ends import end_discounts, label_ends
from gorila_jax.environments.order import CallOrder
from gorila_jax.environments.pictures import draw_observation
from gorila_jax.environments.processes import ProcessVectorEnv
from gorila_jax.environments.seeds import environment_seeds
from gorila_jax.environments.spaces import action_count, checked_actions, observation_layout
from gorila_jax.environments.threads import ThreadVectorEnv
from gorila_jax.types import ConfigError, End, Environment, EnvironmentSpec, EnvironmentStep, GorilaError

_ELAPSED = "elapsed_steps"
_CLOSE_TIMEOUT_S = 5.0
_EXPECTED = "expected module:factory, where factory() returns a gymnasium.Env"


class GymnasiumEnvironment(Environment):
    """E environments of Gymnasium, one after the other, or in a thread or a process each.

    The step after an end ignores that environment's action and resets it, as EnvPool does. Each
    environment reports how many steps its episode has run, and that is compared on every step, so that
    one that resets elsewhere cannot go unnoticed.

    Args:
        vector: of environments wrapped in `CountedSteps`, in `AutoresetMode.NEXT_STEP`. It has the two
            halves of a step, `step_async` and `step_wait`, and its `close` takes a `timeout`.
        spec: of one of them.
        discount: gamma.
        seed: of all of them, used at the first reset.
    """

    def __init__(self, vector: VectorEnv, spec: EnvironmentSpec, discount: float, seed: int):
        self.spec = spec
        self.num_environments: int = vector.num_envs
        self._vector = vector
        self._gamma = discount
        self._seeds: list[int] | None = environment_seeds(seed, vector.num_envs)
        space = vector.single_action_space
        self._first_action = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self._ended = np.zeros(self.num_environments, bool)  # by the previous step
        self._observation: np.ndarray | None = None
        self._order = CallOrder(spec.name)

    def reset(self) -> EnvironmentStep:
        """Starts every environment anew; `first` is true everywhere. Seeds only the first time, so that a
        second `reset` does not repeat the first one's episodes."""
        self._order.reset()
        observation, _ = self._vector.reset(seed=self._seeds)
        self._seeds = None
        nothing = np.zeros(self.num_environments, bool)
        return self._emit(observation, np.zeros(self.num_environments), nothing, nothing, ~nothing)

    def send(self, actions: np.ndarray) -> None:
        """Takes `actions` [E] integers from 0 on, also where the environment's own start elsewhere. Without
        threads and processes the environments only run in `recv`.

        Raises:
            ValueError: an action that the environment does not have, or not one for each environment.
            GorilaError: before the first reset, with a step under way, or a process has died.
        """
        actions = checked_actions(actions, self.num_environments, self.spec.num_actions)
        self._order.send()
        self._vector.step_async(actions.astype(np.int64) + self._first_action)

    def recv(self) -> EnvironmentStep:
        """Waits for the threads or processes, or runs the environments. What an environment raises comes out
        here.

        Raises:
            GorilaError: no step is under way, a process has died, or observations do not fit the
                environment's own space.
            ConfigError: an environment resets in another step than it should.
        """
        self._order.recv()
        first = self._ended
        observation, reward, terminated, truncated, info = self._vector.step_wait()
        if not np.array_equal(np.asarray(info[_ELAPSED]) == 0, first):
            raise ConfigError(
                f"environment {self.spec.name} does not reset in the step after an end, as it must, but in "
                f"the same step or elsewhere: its episodes have run {list(info[_ELAPSED])} steps"
            )
        return self._emit(observation, reward, terminated, truncated, first)

    def render(self) -> np.ndarray:
        """The picture that environment 0 shows now, [H, W, 3] uint8: its own where it was made `renderable`
        and draws rgb_array pictures, and else its observation in grey.

        Raises:
            GorilaError: before the first reset, or with a step under way.
        """
        self._order.render()
        assert self._observation is not None
        if self._vector.render_mode != "rgb_array":
            return draw_observation(self._observation[0])
        return np.array(self._vector.call("render")[0], np.uint8)

    def close(self) -> None:
        """Closes the environments. Where a step under way does not end within a few seconds, its process is
        ended by force, and its thread left alone. May be called again."""
        if self._order.close():
            self._vector.close(timeout=_CLOSE_TIMEOUT_S)

    def _emit(
        self,
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        first: np.ndarray,
    ) -> EnvironmentStep:
        end = label_ends(terminated, truncated, np.zeros(self.num_environments, bool))
        self._ended = end != End.NONE
        self._observation = np.asarray(observation).astype(self.spec.observation_dtype, copy=False)
        return EnvironmentStep(
            observation=self._observation,
            reward=np.where(first, 0, reward).astype(np.float32),
            discount=end_discounts(end, self._gamma),
            end=end,
            first=first,
        )


class SerialVectorEnv(SyncVectorEnv):
    """Gymnasium's, with the two halves of a step, of which the second does everything."""

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        return self.step(self._actions)


class CountedSteps(gymnasium.Wrapper):
    """Replaces the environment's info by the number of steps since its reset, and checks what it returns.

    Users' infos are dropped because nobody reads them, and batching them fails on many a type.

    Raises:
        GorilaError: a reset or a step returned something else than `gymnasium.Env` says, or a reward that is
            not finite.
    """

    def __init__(self, env: gymnasium.Env, name: str):
        super().__init__(env)
        self._name = name
        self._elapsed_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        returned = self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self._wrong("reset", f"{_summary(returned)}, not (observation, info)")
        self._elapsed_steps = 0
        return self._observation("reset", returned[0]), {_ELAPSED: 0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        returned = self.env.step(int(action))
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._wrong(
                "step", f"{_summary(returned)}, not (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, _ = returned
        self._elapsed_steps += 1
        reward_number = self._number("reward", reward, "biuf")
        if not math.isfinite(reward_number):
            raise self._wrong("step", f"a reward of {reward}")
        return (
            self._observation("step", observation),
            reward_number,
            bool(self._number("terminated", terminated, "biu")),
            bool(self._number("truncated", truncated, "biu")),
            {_ELAPSED: self._elapsed_steps},
        )

    def _observation(self, call: str, observation: Any) -> Any:
        space = self.observation_space
        if np.shape(observation) != space.shape:
            raise self._wrong(
                call,
                f"an observation of shape {np.shape(observation)}, but its observation_space says "
                f"{space.shape}",
            )
        dtype = np.asarray(observation).dtype
        if not np.can_cast(dtype, space.dtype, "same_kind"):
            raise self._wrong(
                call, f"an observation of {dtype}, but its observation_space says {space.dtype}"
            )
        if dtype.kind == "f" and not np.isfinite(observation).all():
            raise self._wrong(call, "an observation with numbers that are not finite")
        return observation

    def _number(self, what: str, value: Any, kinds: str) -> float:
        """`value`, a scalar or an array of one element, whose dtype is one of `kinds`."""
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in kinds:
            raise self._wrong("step", f"{value!r} as {what}, which is no {_KINDS[kinds]}")
        return array.item()

    def _wrong(self, call: str, what: str) -> GorilaError:
        return GorilaError(f"environment {self._name}: its {call} returned {what}")


_KINDS = {"biuf": "single number", "biu": "single truth value"}


def _summary(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"


@dataclasses.dataclass(frozen=True)
class EnvironmentMaker:
    """Makes one environment, here or in a process of its own (so it carries the name, not the factory)."""

    name: str  # module:factory
    max_steps_per_episode: int  # 0: the environment's own
    renderable: bool
    parent: int = dataclasses.field(default_factory=os.getpid)

    def __call__(self) -> gymnasium.Env:
        if os.getpid() != self.parent:
            # Ctrl-C reaches every process of a terminal. In a worker it would end the run as a fault of ours,
            # instead of cleanly by the process that trains (which calls this too, to learn the spaces).
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        factory = load_factory(self.name)
        arguments = {"render_mode": "rgb_array"} if self.renderable and _takes_render_mode(factory) else {}
        with _own_faults(self.name, "its factory"):
            env = factory(**arguments)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"environment {self.name!r}: its factory returned a {type(env)}; {_EXPECTED}")
        if self.max_steps_per_episode:
            env = gymnasium.wrappers.TimeLimit(env, self.max_steps_per_episode)
        return CountedSteps(env, self.name)


@contextlib.contextmanager
def _own_faults(name: str, what: str) -> Iterator[None]:
    """Whatever the user's code raises meanwhile becomes a ConfigError that says where."""
    try:
        yield
    except GorilaError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"environment {name!r}: {what} failed with {type(error).__name__}: {error} "
            f"({place.filename}:{place.lineno})"
        ) from error


def load_factory(name: str) -> Callable[..., gymnasium.Env]:
    """What `module:factory` names. The current directory is put before all other places of modules, and
    stays there, since the module may import its neighbours later.

    Raises:
        ConfigError: there is no such thing, or it is not callable; the message names the path.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"environment {name!r}: {_EXPECTED}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"environment {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; "
            f"{_EXPECTED}, and module lies in {os.getcwd()} or on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, dir(module), n=3)
        meant = f"; did you mean {', '.join(close)}?" if close else ""
        where = getattr(module, "__file__", module_name)
        raise ConfigError(f"environment {name!r}: {where} has no {attribute!r}{meant}; {_EXPECTED}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise ConfigError(f"environment {name!r}: {attribute!r} is a {type(factory)}; {_EXPECTED}")
    return factory


def make_gymnasium_environment(
    name: str, config: EnvironmentConfig, *, seed: int, num_environments: int, renderable: bool
) -> GymnasiumEnvironment:
    """Makes `num_environments` environments of the user's; see `make_environment`."""
    _refuse_pool_options(name, config)
    makers = [EnvironmentMaker(name, config.max_steps_per_episode, renderable)] * num_environments
    spec = gymnasium_environment_spec(name, config)
    vector: VectorEnv
    if config.gymnasium_workers == "threads":
        vector = ThreadVectorEnv(makers)
    elif config.gymnasium_workers == "processes":
        vector = ProcessVectorEnv(name, makers)
    else:
        vector = SerialVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    # In processes each has its own.
    if len({id(env.unwrapped) for env in getattr(vector, "envs", ())}) not in (0, num_environments):
        vector.close()
        raise ConfigError(
            f"environment {name!r}: its factory returned the same environment twice; it has to make a new "
            "one in every call"
        )
    return GymnasiumEnvironment(vector, spec, config.discount, seed)


def gymnasium_environment_spec(name: str, config: EnvironmentConfig) -> EnvironmentSpec:
    """What every environment of this name is like. Makes one and closes it."""
    _refuse_pool_options(name, config)
    # Without the configured limit, which would stand in env.spec in place of the environment's own.
    env = EnvironmentMaker(name, 0, renderable=False)()
    with _own_faults(name, "asking it for its spaces, or closing it,"):
        try:
            shape, dtype = observation_layout(name, env.observation_space)
            num_actions = action_count(name, env.action_space)
            own_limit = env.spec.max_episode_steps if env.spec else None
        finally:
            env.close()
    limits = [limit for limit in (config.max_steps_per_episode, own_limit) if limit]
    return EnvironmentSpec(
        name=name,
        observation_shape=shape,
        observation_dtype=dtype,
        num_actions=num_actions,
        frames_per_step=1,
        settings={
            "environment": name,
            "gymnasium_version": gymnasium.__version__,
            "max_steps_per_episode": min(limits) if limits else None,
        },
    )


def _refuse_pool_options(name: str, config: EnvironmentConfig) -> None:
    if config.num_threads:
        raise ConfigError(
            f"num_threads={config.num_threads}: {name} does not run in EnvPool's threads; leave it at 0 and "
            "see gymnasium_workers"
        )
    if config.observation_keys:
        raise ConfigError(
            f"env.observation_keys={','.join(config.observation_keys)}: {name} is your own environment; a "
            "gymnasium wrapper in its factory can flatten what it observes"
        )


def _takes_render_mode(factory: Callable[..., gymnasium.Env]) -> bool:
    parameters = inspect.signature(factory).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return takes_any or "render_mode" in parameters
