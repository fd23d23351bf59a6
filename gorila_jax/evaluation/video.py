"""Films games: the pictures that people know, and not what the network sees."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import imageio
import numpy as np

from gorila_jax.actor.scores import Game, Scores
from gorila_jax.config import Config
from gorila_jax.environments import is_atari, make_environment
from gorila_jax.evaluation.evaluator import default_epsilon
from gorila_jax.evaluation.policy import Policy
from gorila_jax.types import ConfigError, Environment, GorilaError, Parameters

SUFFIXES = (".mp4", ".gif")

_CONSOLE_FPS = 60
_OTHER_FPS = 10


class Recording(NamedTuple):
    path: str
    games: tuple[Game, ...]  # those that came to their end
    cut_score: float | None  # of a game cut off by `max_steps`, until then; None where none was
    pictures: int


class _Renderable(Environment, Protocol):
    def render(self) -> np.ndarray: ...


def record(
    config: Config,
    parameters: Parameters,
    path: str | os.PathLike[str],
    *,
    episodes: int = 1,
    epsilon: float | None = None,
    seed: int = 0,
    fps: float = 0.0,
    max_steps: int = 0,
    overwrite: bool = False,
    on_game: Callable[[Game], None] = lambda game: None,
) -> Recording:
    """Plays whole games one after the other and writes a picture of every step to a film.

    On Atari these are the console's own colours, 210 by 160 pixels; of an environment that draws nothing,
    its observation in grey. The film appears when it is complete.

    Args:
      config: of the run.
      parameters: of its network.
      path: ends in .mp4, or in .gif, which is built in memory; its directory exists.
      episodes: games, at least 1.
      epsilon: chance of a random action; by default 0.05 on Atari and 0 elsewhere.
      seed: of environment and random actions, at least 0.
      fps: pictures (steps) per second; 0: the console's own speed on Atari, 10 elsewhere. A GIF counts in
        hundredths of a second and shows equal pictures as one, for as long.
      max_steps: end the film after so many steps of all games together; 0: when the last game ends.
      overwrite: replace a file that is there already.
      on_game: called with every game as it ends.

    Raises:
      ConfigError: an argument that cannot work; nothing has been played then.
      GorilaError: the film could not be written.
    """
    path = _checked_path(Path(path), overwrite)
    if episodes < 1:
        raise ConfigError(f"episodes={episodes}: at least 1")
    if not fps >= 0:
        raise ConfigError(f"fps={fps}: at least 0")
    if max_steps < 0:
        raise ConfigError(f"max_steps={max_steps}: at least 0")
    epsilon = default_epsilon(config.environment) if epsilon is None else epsilon
    fps = fps or (_CONSOLE_FPS / config.env.frame_skip if is_atari(config.environment) else _OTHER_FPS)
    env_config = dataclasses.replace(config.env, num_environments=1)
    environment = cast(
        _Renderable,
        make_environment(config.environment, env_config, seed=seed, training=False, renderable=True),
    )
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        policy = Policy(config, environment.spec, parameters, epsilon=epsilon, seed=seed)
        with _film(partial, fps) as film:
            recording = _play(environment, policy, film, episodes, max_steps, on_game)
        os.replace(partial, path)
    except OSError as error:
        raise GorilaError(f"cannot write {path}: {error}") from error
    finally:
        environment.close()
        partial.unlink(missing_ok=True)
    return recording._replace(path=str(path))


def _play(
    environment: _Renderable,
    policy: Policy,
    film: Any,
    episodes: int,
    max_steps: int,
    on_game: Callable[[Game], None],
) -> Recording:
    scores = Scores(1)
    games: list[Game] = []
    step = environment.reset()
    film.append_data(_even(environment.render()))
    pictures, steps = 1, 0
    while len(games) < episodes and (steps < max_steps or not max_steps):
        step = environment.step(policy.act(step))
        film.append_data(_even(environment.render()))
        pictures += 1
        steps += int(not step.first[0])
        for game in scores.take(step):
            games.append(game)
            on_game(game)
    return Recording("", tuple(games), float(scores.running[0]) if len(games) < episodes else None, pictures)


def _film(path: Path, fps: float) -> Any:
    if path.suffix == ".gif":
        return imageio.get_writer(path, duration=1000 / fps, loop=0)
    # The default of 16 would stretch every picture to a multiple of that.
    return imageio.get_writer(path, fps=fps, macro_block_size=2)


def _even(picture: np.ndarray) -> np.ndarray:
    """[H, W, 3] with the last row and column doubled where their number is odd: H.264 wants even ones."""
    return np.pad(picture, ((0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)), mode="edge")


def _checked_path(path: Path, overwrite: bool) -> Path:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"video {str(path)!r}: its name has to end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"video {str(path)!r}: there is no directory {path.parent}")
    if path.exists() and not (overwrite and path.is_file()):
        raise ConfigError(f"video {str(path)!r} exists already: give another name, or --overwrite")
    return path
