"""Finished games: statistics of the last ones, and all of them as a table.

Scores under exploration depend on how much was explored. So every mean comes with its epsilon, and where an
agent's environments explore differently, as on Ape-X's ladder, they are told apart.
"""

from __future__ import annotations

import collections
import heapq
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from gorila_jax.runtime.csv_table import CsvTable, Value, read_columns
from gorila_jax.types import Episode

EPISODES = "episodes.csv"

EPISODE_COLUMNS: dict[str, str] = {
    "frames": "of the row of metrics.csv that the game was written with: it ended since the row before",
    "wall_seconds": "of that row when it was written: seconds of the run so far, added up over resumes",
    "actor": "that played it",
    "environment": "of that actor",
    "epsilon": "exploration rate of that environment when the game ended",
    "episode_return": "game score: undiscounted sum of raw rewards, over all lives",
    "training_return": "no game score: the same sum of the clipped rewards that training sees",
    "steps": "length of the game in actions taken",
}
"""The columns of `episodes.csv`, one line per finished game of all actors."""

WINDOW = 100  # episodes that a mean is over
GROUPS = 4  # that the environments of a ladder are told apart in
GROUP_WINDOW = WINDOW // GROUPS  # of each group, so that its mean is about as old as that of all
ALIKE = 0.01  # epsilons this close to the largest count as one: schedules read the clock one after another


class EpisodeWriter:
    """Appends finished games to `episodes.csv`. Used by one thread. See `CsvTable` for resuming."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        resumed_frames: int | None = None,
        max_episodes: int | None = None,
    ) -> None:
        """Opens the file below the workdir `directory`; None or 0 frames starts with no games.

        Args:
          max_episodes: those written before the checkpoint (`written_before`), where that is known. Frames do
            not tell it all: the games of a row at the very frames of the checkpoint may be older or newer.

        Raises:
          GorilaError: the file has columns that are not known, is damaged, or cannot be written.
        """
        self._table = CsvTable(
            Path(directory) / EPISODES,
            EPISODE_COLUMNS,
            resumed_frames=resumed_frames,
            max_rows=max_episodes,
        )

    def write(self, episodes: Iterable[Episode], row: Mapping[str, Value]) -> None:
        """Adds games to the file, with the frames and seconds of `row`, a row of metrics as it was written.

        Raises:
          GorilaError: the disk refused them.
        """
        when = {"frames": row["frames"], "wall_seconds": row["wall_seconds"]}
        lines = (when | episode._asdict() for episode in episodes)
        self._table.append([line[name] for name in EPISODE_COLUMNS] for line in lines)

    def close(self) -> None:
        """Closes the file; harmless when repeated."""
        self._table.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_episodes(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of an `episodes.csv`, given it or its workdir.

    Returns:
      One float64 array [episodes] per column of `EPISODE_COLUMNS`, NaN where a field is empty.

    Raises:
      GorilaError: there is none, it has columns that are not known, or it is damaged.
    """
    path = Path(path)
    return read_columns(path / EPISODES if path.is_dir() else path, EPISODE_COLUMNS)


class ActorSummary(NamedTuple):
    """The share that one actor has in the statistics."""

    actor: int
    episodes: int  # since the run began
    recent_episodes: int  # that the means are over: its last 100
    return_mean: float
    epsilon_mean: float


class GroupSummary(NamedTuple):
    """What environments that explore about as much as each other have played."""

    lowest_epsilon: float
    highest_epsilon: float
    environments: int
    episodes: int  # that the mean is over: the last 25 of the group; where it is the only one, the last 100
    return_mean: float | None  # None before the first has ended


class EpisodeStatistics:
    """Collects finished episodes from any thread.

    `epsilons` [actors, E] are those of all environments at one moment: they say who explores least.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[int, int] = {}
        self._new: list[Episode] = []  # since `take` was called last
        self._recent: collections.deque[Episode] = collections.deque(maxlen=WINDOW)
        # By actor and environment, each with its number in the order in which they came.
        self._by_stream: dict[tuple[int, int], collections.deque[tuple[int, Episode]]] = {}
        self._number = 0

    @property
    def num_new(self) -> int:
        """How many `take` would hand over."""
        return len(self._new)

    def add(self, episode: Episode) -> None:
        with self._lock:
            self._totals[episode.actor] = self._totals.get(episode.actor, 0) + 1
            self._new.append(episode)
            self._remember(episode)

    def _remember(self, episode: Episode) -> None:
        self._number += 1
        self._recent.append(episode)
        stream = (episode.actor, episode.environment)
        episodes = self._by_stream.setdefault(stream, collections.deque(maxlen=WINDOW))
        episodes.append((self._number, episode))

    def row(self, epsilons: np.ndarray | None = None) -> dict[str, Value]:
        """The columns of `metrics.COLUMNS` that speak of episodes; means are None before the first has ended.

        The least exploring environments are the first group of `group_environments(epsilons)`; without
        epsilons, all.
        """
        return self._look(epsilons)[0]

    def take(self, epsilons: np.ndarray) -> tuple[dict[str, Value], list[Episode]]:
        """`row` and, of the same moment, the episodes since the call before, oldest first."""
        return self._look(epsilons, take=True)

    def _look(
        self, epsilons: np.ndarray | None, take: bool = False
    ) -> tuple[dict[str, Value], list[Episode]]:
        groups = [] if epsilons is None else group_environments(epsilons)
        with self._lock:  # nothing but copies: actors wait for it
            new: list[Episode] = []
            if take:
                new, self._new = self._new, new
            recent, total = list(self._recent), sum(self._totals.values())
            numbered = self._numbered(groups[0]) if len(groups) > 1 else []
        least = _last(numbered, GROUP_WINDOW) if len(groups) > 1 else recent
        clipped = [episode.training_return for episode in recent if episode.training_return is not None]
        row: dict[str, Value] = {
            "episodes": total,
            "episode_return_mean": _mean([episode.episode_return for episode in recent]),
            "episode_epsilon_mean": _mean([episode.epsilon for episode in recent]),
            "episode_return_least_exploring": _mean([episode.episode_return for episode in least]),
            "epsilon_least_exploring": _mean([episode.epsilon for episode in least]),
            "episode_training_reward_mean": _mean(clipped),
            "episode_length_mean_steps": _mean([episode.steps for episode in recent]),
        }
        return row, new

    def _numbered(self, streams: Iterable[tuple[int, int]]) -> list[tuple[int, Episode]]:
        return [numbered for stream in streams for numbered in self._by_stream.get(stream, ())]

    def actors(self) -> list[ActorSummary]:
        """One summary per actor that has finished an episode; their episodes add up to the total."""
        with self._lock:
            totals = sorted(self._totals.items())
            numbered = self._numbered(self._by_stream)
        summaries = []
        for actor, total in totals:
            own = _last(((number, episode) for number, episode in numbered if episode.actor == actor), WINDOW)
            return_mean = _mean([episode.episode_return for episode in own])
            epsilon_mean = _mean([episode.epsilon for episode in own])
            summaries.append(ActorSummary(actor, total, len(own), return_mean, epsilon_mean))
        return summaries

    def groups(self, epsilons: np.ndarray) -> list[GroupSummary]:
        """One summary per group of `group_environments(epsilons)`."""
        summaries = []
        groups = group_environments(epsilons)
        for streams in groups:
            with self._lock:
                numbered = self._numbered(streams)
            played = _last(numbered, GROUP_WINDOW if len(groups) > 1 else WINDOW)
            own = [float(epsilons[stream]) for stream in streams]
            return_mean = _mean([episode.episode_return for episode in played])
            summaries.append(GroupSummary(min(own), max(own), len(own), len(played), return_mean))
        return summaries

    def state(self) -> dict[str, Any]:
        """Totals and the last episodes, for a checkpoint.

        Returns:
          totals: episodes by actor; recent, streams, new: [episodes, fields of Episode] float64, NaN for
          None: the last ones of all, the last ones of every environment, and those that nobody took yet.
        """
        with self._lock:
            numbered = self._numbered(self._by_stream)
            state = {"totals": {str(actor): total for actor, total in self._totals.items()}}
            recent, new = list(self._recent), list(self._new)
        streams = [episode for _, episode in sorted(numbered)]
        return state | {"recent": _table(recent), "streams": _table(streams), "new": _table(new)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        with self._lock:
            self._totals = {int(actor): int(total) for actor, total in state["totals"].items()}
            self._by_stream.clear()
            for episode in _episodes(state["streams"]):
                self._remember(episode)
            self._recent.clear()
            self._recent.extend(_episodes(state["recent"]))
            self._new = _episodes(state["new"])


def written_before(state: Mapping[str, Any]) -> int:
    """How many episodes had been taken, since the run began, when `EpisodeStatistics.state` gave `state`."""
    return sum(int(total) for total in state["totals"].values()) - len(state["new"])


def group_environments(epsilons: np.ndarray) -> list[list[tuple[int, int]]]:
    """The environments in up to four groups, from those that explore least to those that explore most.

    Args:
      epsilons: [actors, E], of all environments at one moment.

    Returns:
      (actor, environment) of each group's members. The groups are quarters, as far as the number divides;
      environments of one epsilon stay together, and where all explore alike there is one group.
    """
    num_actors, num_environments = epsilons.shape
    order = [(actor, environment) for actor in range(num_actors) for environment in range(num_environments)]
    order.sort(key=lambda stream: float(epsilons[stream]))
    rungs = np.sort(epsilons, axis=None)
    if rungs[-1] - rungs[0] <= ALIKE * rungs[-1]:
        return [order]
    groups: list[list[tuple[int, int]]] = []
    start = 0
    for left in range(GROUPS, 0, -1):
        end = start + math.ceil((len(order) - start) / left)
        if start < end < len(order) and rungs[end] == rungs[end - 1]:  # it would part equals
            before = int(np.searchsorted(rungs, rungs[end], side="left"))
            end = before if before > start else int(np.searchsorted(rungs, rungs[end], side="right"))
        if end > start:
            groups.append(order[start:end])
        start = end
    return groups


def _last(numbered: Iterable[tuple[int, Episode]], count: int) -> list[Episode]:
    """The last episodes of several streams together, newest first."""
    return [episode for _, episode in heapq.nlargest(count, numbered)]


def _table(episodes: Sequence[Episode]) -> np.ndarray:
    rows = [[math.nan if field is None else float(field) for field in episode] for episode in episodes]
    return np.array(rows, np.float64).reshape(len(rows), len(Episode._fields))


def _episodes(table: np.ndarray) -> list[Episode]:
    return [
        Episode(
            int(actor), int(environment), value, int(steps), epsilon, None if np.isnan(clipped) else clipped
        )
        for actor, environment, value, steps, epsilon, clipped in table.tolist()
    ]


def _mean(values: Sequence[float]) -> Any:
    return float(np.mean(values)) if values else None
