"""Plays whole games with one fixed policy and scores them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gorila_jax.actor.scores import Game, Scores
from gorila_jax.config import Config
from gorila_jax.environments import is_atari, make_environment
from gorila_jax.evaluation.policy import Policy
from gorila_jax.evaluation.saved_run import SavedRun
from gorila_jax.types import (
    ConfigError,
    End,
    Environment,
    EnvironmentSpec,
    EnvironmentStep,
    GorilaError,
    Parameters,
)

ATARI_EPSILON = 0.05
"""Mnih et al. 2015, methods: keeps an agent from overfitting to a game that has no randomness."""

_MAX_ENVIRONMENTS = 16
"""Unless asked for. A fixed number, so that a seed gives the same games whatever the machine's cores."""


class Evaluation(NamedTuple):
    """One round: the games of one fixed set of parameters."""

    games: tuple[Game, ...]  # by environment, each one's in the order they were played
    epsilon: float
    seed: int
    num_environments: int
    spec: EnvironmentSpec  # its settings are those of the environment played, read back from it

    @property
    def mean(self) -> float:
        return float(np.mean([game.score for game in self.games]))

    @property
    def standard_deviation(self) -> float:
        """Of the games played: divided by their number, and not by one less."""
        return float(np.std([game.score for game in self.games]))


def default_epsilon(environment: str) -> float:
    """0.05 on Atari, 0 elsewhere. Raises ConfigError for a name that means nothing."""
    return ATARI_EPSILON if is_atari(environment) else 0.0


def evaluate(
    config: Config,
    parameters: Parameters,
    *,
    episodes: int,
    epsilon: float | None = None,
    seed: int = 0,
    num_environments: int | None = None,
    on_game: Callable[[Game], None] = lambda game: None,
    clock: Callable[[], float] | None = None,
    max_minutes: float = math.inf,
) -> Evaluation:
    """Plays `episodes` whole games in environments of its own and returns their raw scores.

    The same arguments give the same scores. Lives are never ends here, whatever training took for one, and
    the time limit of the configuration ends a game in which nothing happens any more.

    Args:
      config: of the run; change its `env` to play under another protocol than training's.
      parameters: of its network, copied at the start.
      episodes: games, at least 1.
      epsilon: chance of a random action; by default 0.05 on Atari and 0 elsewhere.
      seed: of environments and random actions, at least 0.
      num_environments: played at once; by default 16, or fewer where there are fewer games. Part of what
        makes the games what they are, as each environment has a seed of its own.
      on_game: called with every game that counts, as it ends.
      clock: seconds, of any origin; needed for `max_minutes`.
      max_minutes: on that clock. The games of an unfinished round favour short ones, so none are returned.

    Raises:
      ConfigError: an argument that cannot work, or parameters that do not fit the environment.
      GorilaError: the time was up before the last game ended.
    """
    if episodes < 1:
        raise ConfigError(f"episodes={episodes}: at least 1")
    if not max_minutes > 0:
        raise ConfigError(f"max_minutes={max_minutes}: more than 0")
    if clock is None and math.isfinite(max_minutes):
        raise ConfigError(f"max_minutes={max_minutes} needs a clock, such as time.monotonic")
    size = min(episodes, _MAX_ENVIRONMENTS) if num_environments is None else num_environments
    if size < 1:
        raise ConfigError(f"num_environments={size}: at least 1")
    size = min(size, episodes)
    epsilon = default_epsilon(config.environment) if epsilon is None else epsilon
    env_config = dataclasses.replace(config.env, num_environments=size)
    environment = make_environment(config.environment, env_config, seed=seed, training=False)
    try:
        policy = Policy(config, environment.spec, parameters, epsilon=epsilon, seed=seed)
        deadline = clock() + 60 * max_minutes if clock else math.inf
        games = play_games(
            environment,
            policy.act,
            split_evenly(episodes, size),
            on_game=on_game,
            out_of_time=lambda: clock is not None and clock() > deadline,
        )
    finally:
        environment.close()
    return Evaluation(tuple(games), epsilon, seed, size, environment.spec)


def split_evenly(episodes: int, num_environments: int) -> list[int]:
    """Games of each environment: they differ by at most one, the first ones play more."""
    each, more = divmod(episodes, num_environments)
    return [each + (e < more) for e in range(num_environments)]


def play_games(
    environment: Environment,
    act: Callable[[EnvironmentStep], np.ndarray],
    quotas: Sequence[int],
    *,
    on_game: Callable[[Game], None] = lambda game: None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> list[Game]:
    """The first `quotas[e]` games of every environment e, sorted by environment.

    How many games count from where is settled before the first one starts. Taking the games that end first,
    wherever they do, would favour short ones: on most games those of a bad score.

    Args:
      environment: E of them.
      act: actions [E] after a step, or the reset.
      quotas: [E].
      on_game: called with every game that counts, as it ends.
      out_of_time: asked after every step.

    Raises:
      GorilaError: out of time before the last game ended.
    """
    scores = Scores(environment.num_environments)
    games: list[Game] = []
    left = list(quotas)
    step = environment.reset()
    while any(left):
        if out_of_time():
            raise GorilaError(
                f"the time limit came after {len(games)} of {sum(quotas)} games, which would favour short "
                "ones: allow more minutes, ask for fewer games, or lower the environment's own time limit"
            )
        step = environment.step(act(step))
        for game in scores.take(step):
            if left[game.environment]:
                left[game.environment] -= 1
                games.append(game)
                on_game(game)
    return sorted(games, key=lambda game: game.environment)


def result_record(run: SavedRun, evaluation: Evaluation, versions: Mapping[str, Any]) -> dict[str, Any]:
    """All there is to know of a round, as JSON values: scores, protocol, and whose they are.

    Args:
      run: whose parameters were played.
      evaluation: the round.
      versions: of the libraries.
    """
    spec = evaluation.spec
    return {
        "environment": spec.name,
        "agent": run.config.agent,
        "frames_trained": run.frames,
        "parameters_version": run.version,
        "episodes": len(evaluation.games),
        "mean": evaluation.mean,
        "standard_deviation": evaluation.standard_deviation,
        "returns": [game.score for game in evaluation.games],
        "steps": [game.steps for game in evaluation.games],
        "ended_by_time_limit": sum(game.end == End.TIME_LIMIT for game in evaluation.games),
        "epsilon": evaluation.epsilon,
        "seed": evaluation.seed,
        "num_environments": evaluation.num_environments,
        "frames_per_step": spec.frames_per_step,
        "frame_stack": run.config.env.frame_stack,
        "protocol": dict(spec.settings),
        "versions": dict(versions),
    }
