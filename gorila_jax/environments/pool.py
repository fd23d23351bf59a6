"""EnvPool: batched C++ environments, Atari above all."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import envpool
import numpy as np

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments.cores import usable_cores
from gorila_jax.environments.ends import end_discounts, label_ends
from gorila_jax.environments.names import is_atari
from gorila_jax.environments.order import CallOrder
from gorila_jax.environments.pictures import draw_observation
from gorila_jax.environments.seeds import environment_seeds
from gorila_jax.environments.spaces import (
    action_count,
    checked_actions,
    named_layout,
    observation_layout,
    side_by_side,
)
from gorila_jax.types import ConfigError, End, Environment, EnvironmentSpec, EnvironmentStep, GorilaError

_NO_LIMIT = 2**31 - 1  # EnvPool's default for environments that know no time limit


class PoolEnvironment(Environment):
    """E environments of one EnvPool, stepped together by its threads.

    The step after an end ignores that environment's action, resets it and gives the next episode's first
    observation, with `first` true and reward 0. Such steps are known by the previous step's end and not by
    EnvPool's step counter, which a life loss does not set back; where the counter does tell something, it
    is compared on every step.

    On Atari with `life_loss_is_end`, the step after a life loss goes on with the same game: EnvPool plays
    up to `noop_max` no-ops there, whose rewards are nobody's. `reset` starts a new game in any case.

    EnvPool itself calls a game over in the very step of a time limit a time limit, except on Atari, where
    it tells them apart and the game over wins.

    Args:
        pool: EnvPool's environment with its Gymnasium interface, in synchronous mode.
        spec: of one of its environments.
        discount: gamma.
        observation_keys: of the named arrays that it observes, those that count; none: it observes one array.
    """

    def __init__(
        self, pool: Any, spec: EnvironmentSpec, discount: float, observation_keys: Sequence[str] = ()
    ):
        self.spec = spec
        self.num_environments: int = pool.config["num_envs"]
        self._pool = pool
        self._gamma = discount
        self._observation_keys = observation_keys
        self._ended = np.full(self.num_environments, End.NONE, np.uint8)  # by the previous step
        self._observation: np.ndarray | None = None
        self._order = CallOrder(spec.name)

    def reset(self) -> EnvironmentStep:
        """Starts every environment anew; `first` is true everywhere. The random streams go on: a second
        `reset` does not repeat the first one's episodes."""
        self._order.reset()
        observation, info = self._pool.reset()
        observation = self._checked(observation, info)
        nothing = np.zeros(self.num_environments, bool)
        return self._emit(observation, np.zeros(self.num_environments), nothing, nothing, nothing, ~nothing)

    def send(self, actions: np.ndarray) -> None:
        """Hands `actions` [E] integers to EnvPool's threads and returns at once.

        Raises:
            ValueError: an action that the environment does not have, or not one for each environment.
            GorilaError: before the first reset, or with a step under way.
        """
        actions = checked_actions(actions, self.num_environments, self.spec.num_actions)
        self._order.send()
        self._pool.send(actions)

    def recv(self) -> EnvironmentStep:
        """Waits for the last of EnvPool's results.

        Raises:
            GorilaError: no step is under way, or EnvPool returned less than one result for each environment.
            ConfigError: EnvPool resets in another step than we expect.
        """
        self._order.recv()
        first = self._ended != End.NONE
        observation, reward, terminated, truncated, info = self._pool.recv()
        observation = self._checked(observation, info)
        self._check_reset_style(np.asarray(info["elapsed_step"]))
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        # On Atari `terminated` is also true for a life lost; info tells the end of the game apart, and
        # does so even when the time limit falls on the same step.
        game_over = np.asarray(info["terminated"], bool) if "terminated" in info else terminated
        return self._emit(observation, reward, game_over, truncated, terminated & ~game_over, first)

    def render(self) -> np.ndarray:
        """The picture that environment 0 shows now, [H, W, 3] uint8: the game's own colours at full size
        where it was made `renderable` and has a picture, and else its observation in grey.

        Raises:
            GorilaError: before the first reset, or with a step under way.
        """
        self._order.render()
        assert self._observation is not None
        try:
            frames = self._pool.render(env_ids=0)
        except RuntimeError:  # EnvPool's word for "there is no picture of this environment"
            return draw_observation(self._observation[0])
        return np.array(frames[0], np.uint8)

    def close(self) -> None:
        """Ends the pool's threads, after the step under way if there is one. May be called again."""
        if not self._order.close():
            return
        if self._order.under_way:
            self._pool.recv()  # a thread of the pool may need this one to finish its step
        self._pool.close()
        del self._pool  # its threads end with it and not with `close`

    def _emit(
        self,
        observation: np.ndarray,
        reward: np.ndarray,
        game_over: np.ndarray,
        time_limit: np.ndarray,
        life_loss: np.ndarray,
        first: np.ndarray,
    ) -> EnvironmentStep:
        end = label_ends(game_over, time_limit, life_loss)
        self._ended = end.copy()
        self._observation = observation
        return EnvironmentStep(
            observation=observation,
            reward=np.where(first, 0, reward).astype(np.float32),
            discount=end_discounts(end, self._gamma),
            end=end,
            first=first,
        )

    def _checked(self, observation: Any, info: dict[str, Any]) -> np.ndarray:
        """The observations as the spec has them: one array, without the stack axis, and never of float64."""
        if self._observation_keys:
            observation = side_by_side(observation, self._pool.observation_space, self._observation_keys)
        if len(observation) != self.num_environments:
            raise GorilaError(
                f"{self.spec.name}: EnvPool returned {len(observation)} results for "
                f"{self.num_environments} environments; results must be asked for once per step"
            )
        if not np.array_equal(info["env_id"], np.arange(self.num_environments)):
            raise GorilaError(f"{self.spec.name}: EnvPool's results are out of order: {info['env_id']}")
        wanted = (self.num_environments, *self.spec.observation_shape)
        return observation.reshape(wanted).astype(self.spec.observation_dtype, copy=False)

    def _check_reset_style(self, elapsed_steps: np.ndarray) -> None:
        restarted = (self._ended == End.GAME_OVER) | (self._ended == End.TIME_LIMIT)
        running = self._ended == End.NONE
        if np.any(restarted & (elapsed_steps != 0)) or np.any(running & (elapsed_steps == 0)):
            raise ConfigError(
                f"{self.spec.name}: this EnvPool {envpool.__version__} does not reset in the step after an "
                f"end, as it must, but in the same step or elsewhere (its step counters are "
                f"{list(elapsed_steps)}); install the version in requirements.txt"
            )


def make_pool_environment(
    name: str,
    config: EnvironmentConfig,
    *,
    seed: int,
    num_environments: int,
    training: bool,
    renderable: bool,
) -> PoolEnvironment:
    """Makes `num_environments` environments of EnvPool; see `make_environment`. `name` is a full name."""
    options = _options(name, config, training)
    keys = config.observation_keys
    _spec(name, _envpool_spec(name, options), keys)  # refuses what we cannot learn in before anything starts
    _check_limit_is_kept(name, config, options)
    with _without_space_warnings():
        pool = envpool.make_gymnasium(
            name,
            num_envs=num_environments,
            num_threads=min(config.num_threads or usable_cores(), num_environments),
            seed=environment_seeds(seed, num_environments),
            **({"render_mode": "rgb_array"} if renderable else {}),
            **options,
        )
        _ = pool.observation_space  # made when first asked for, and kept
    return PoolEnvironment(pool, _spec(name, pool.spec, keys), config.discount, keys)


def pool_environment_spec(name: str, config: EnvironmentConfig) -> EnvironmentSpec:
    """What `make_pool_environment` would give, as in training, without starting a pool."""
    options = _options(name, config, training=True)
    return _spec(name, _envpool_spec(name, options), config.observation_keys)


@contextlib.contextmanager
def _without_space_warnings() -> Iterator[None]:
    """EnvPool gives its spaces limits in float64, and Gymnasium says so again and again, to no use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        yield


def _envpool_spec(name: str, options: dict[str, Any]) -> Any:
    try:
        return envpool.make_spec(name, **options)
    except ImportError as error:
        raise ConfigError(f"environment {name}: {error}") from error


def _options(name: str, config: EnvironmentConfig, training: bool) -> dict[str, Any]:
    """EnvPool's arguments but for those of a single pool. Raises ConfigError for what it cannot do."""
    if config.gymnasium_workers != EnvironmentConfig().gymnasium_workers:
        raise ConfigError(
            f"gymnasium_workers={config.gymnasium_workers!r}: {name} runs in EnvPool's threads, "
            "see num_threads"
        )
    if not is_atari(name):
        return {"max_episode_steps": config.max_steps_per_episode} if config.max_steps_per_episode else {}
    if config.max_steps_per_episode:
        raise ConfigError(
            f"max_steps_per_episode={config.max_steps_per_episode}: {name} is an Atari game, "
            "use max_frames_per_episode"
        )
    if config.max_frames_per_episode < config.frame_skip:
        raise ConfigError(
            f"max_frames_per_episode={config.max_frames_per_episode}: at least one step of "
            f"frame_skip={config.frame_skip} frames"
        )
    return {
        "stack_num": 1,  # frames are stored once, the learner stacks them
        "use_fire_reset": False,  # it loses lives all by itself
        "reward_clip": False,
        "frame_skip": config.frame_skip,
        "noop_max": config.noop_max,
        "repeat_action_probability": config.sticky_action_probability,
        "full_action_space": config.full_action_set,
        "episodic_life": config.life_loss_is_end and training,
        "max_episode_steps": config.max_frames_per_episode // config.frame_skip,
    }


def _check_limit_is_kept(name: str, config: EnvironmentConfig, options: dict[str, Any]) -> None:
    """Some environments (Catch) take a limit and go on, only to call their natural end a time limit."""
    if not config.max_steps_per_episode:
        return
    pool = envpool.make_gymnasium(name, num_envs=1, **{**options, "max_episode_steps": 1})
    pool.reset()
    *_, truncated, _ = pool.step(np.zeros(1, np.int32))
    pool.close()
    if not truncated[0]:
        raise ConfigError(
            f"max_steps_per_episode={config.max_steps_per_episode}: EnvPool's {name} knows no time limit; "
            "leave it at 0"
        )


def _spec(name: str, pool_spec: Any, observation_keys: Sequence[str]) -> EnvironmentSpec:
    options = pool_spec.config._asdict()
    if options["max_num_players"] != 1:
        raise ConfigError(f"environment {name}: {options['max_num_players']} players; only one is possible")
    with _without_space_warnings():
        num_actions = action_count(name, pool_spec.action_space)
        space = pool_spec.observation_space
        if observation_keys:
            shape, dtype = named_layout(name, space, observation_keys)
        else:
            shape, dtype = observation_layout(name, space)
    frames_per_step = 1
    settings: dict[str, Any] = {"environment": name, "envpool_version": envpool.__version__}
    if observation_keys:
        settings["observation_keys"] = ",".join(observation_keys)
    if is_atari(name):
        shape = shape[1:]  # the stack of one frame
        frames_per_step = options["frame_skip"]
        settings |= {
            "frame_skip": options["frame_skip"],
            "noop_max": options["noop_max"],
            "sticky_action_probability": options["repeat_action_probability"],
            "full_action_set": options["full_action_space"],
            "num_actions": num_actions,
            "life_loss_is_end": options["episodic_life"],
            "fire_on_reset": options["use_fire_reset"],
            "reward_clip": options["reward_clip"],
            "max_frames_per_episode": options["max_episode_steps"] * options["frame_skip"],
            "image_height": options["img_height"],
            "image_width": options["img_width"],
            "grayscale": options["gray_scale"],
            "area_interpolation": options["use_inter_area_resize"],
            "mode": options["mode"],
            "difficulty": options["difficulty"],
        }
    limit = options["max_episode_steps"]
    settings["max_steps_per_episode"] = None if limit == _NO_LIMIT else limit
    return EnvironmentSpec(
        name=name,
        observation_shape=shape,
        observation_dtype=dtype,
        num_actions=num_actions,
        frames_per_step=frames_per_step,
        settings=settings,
    )
