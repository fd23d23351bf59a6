"""Finished games: what is said of the last ones, and the table of all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from gorila_jax import checkpoints
from gorila_jax.rl.exploration import ladder
from gorila_jax.runtime.episodes import (
    EPISODE_COLUMNS,
    EPISODES,
    EpisodeStatistics,
    EpisodeWriter,
    group_environments,
    read_episodes,
    written_before,
)
from gorila_jax.runtime.metrics import COLUMNS
from gorila_jax.types import Episode, GorilaError


class TestEpisodeStatistics:
    def test_before_the_first_episode(self) -> None:
        row = EpisodeStatistics().row()
        assert set(row) <= set(COLUMNS)
        assert row.pop("episodes") == 0
        assert set(row.values()) == {None}

    def test_means_of_the_last_hundred_with_their_epsilon(self) -> None:
        statistics = EpisodeStatistics()
        for i in range(150):
            statistics.add(Episode(0, i % 4, float(i), steps=2 * i, epsilon=i / 1000, training_return=1.0))
        row = statistics.row()
        assert row["episodes"] == 150
        assert row["episode_return_mean"] == (50 + 149) / 2
        assert row["episode_length_mean_steps"] == 50 + 149
        assert row["episode_epsilon_mean"] == pytest.approx((50 + 149) / 2 / 1000)
        assert row["episode_training_reward_mean"] == 1.0

    def test_exploration_levels_are_told_apart(self) -> None:
        """Actor 0 explores and scores 0, actor 7 hardly explores and scores 100."""
        statistics = EpisodeStatistics()
        for _ in range(3):
            statistics.add(Episode(0, 0, 0.0, 5, 0.4))
            statistics.add(Episode(7, 0, 100.0, 5, 0.001))
            statistics.add(Episode(7, 1, 40.0, 5, 0.1))
        epsilons = np.array([[0.4, 0.4]] * 7 + [[0.001, 0.1]])
        row = statistics.row(epsilons)
        assert row["episode_return_least_exploring"] == 70.0
        assert row["epsilon_least_exploring"] == pytest.approx(0.0505)
        assert row["episode_return_mean"] == pytest.approx(140 / 3)
        assert row["episode_training_reward_mean"] is None
        first, second = statistics.actors()
        assert first == (0, 3, 3, 0.0, pytest.approx(0.4))
        assert second == (7, 6, 6, 70.0, pytest.approx(0.0505))
        assert row["episodes"] == first.episodes + second.episodes

    def test_the_least_exploring_are_the_lowest_quarter_over_their_last_games_together(self) -> None:
        """Of each two environments of a quarter one plays five games while the other plays one."""
        statistics = EpisodeStatistics()
        epsilons = np.array([[0.4, 0.16, 0.064, 0.0256], [0.01, 0.004, 0.0016, 0.0007]])
        for game in range(100):
            for actor, environment in np.ndindex(2, 4):
                for _ in range(1 if environment % 2 else 5):
                    score = 1000.0 * (4 * actor + environment) + game
                    statistics.add(Episode(actor, environment, score, 5, epsilons[actor, environment]))
        row = statistics.row(epsilons)
        # The last 25 games of the two: 5 rounds of five and one, less the first five of those.
        games = [6000.0 + game for game in range(96, 100) for _ in range(5)]
        games += [7000.0 + game for game in range(95, 100)]
        assert len(games) == 25
        assert row["episode_return_least_exploring"] == pytest.approx(np.mean(games))
        assert row["epsilon_least_exploring"] == pytest.approx((20 * 0.0016 + 5 * 0.0007) / 25)
        groups = statistics.groups(epsilons)
        assert groups[0] == (0.0007, 0.0016, 2, 25, pytest.approx(np.mean(games)))
        assert groups[3][:4] == (0.16, 0.4, 2, 25)
        assert [group.return_mean // 1000 for group in groups] == [6, 4, 2, 0]

    def test_an_actor_s_means_are_over_its_last_hundred(self) -> None:
        statistics = EpisodeStatistics()
        for i in range(300):
            statistics.add(Episode(i % 2, i % 6, float(i), 5, i / 1000))
        odd = np.arange(101, 300, 2)
        assert statistics.actors()[1] == (1, 150, 100, odd.mean(), pytest.approx(odd.mean() / 1000))

    def test_until_the_least_exploring_have_finished_a_game_nothing_is_said_of_them(self) -> None:
        statistics = EpisodeStatistics()
        statistics.add(Episode(0, 0, 3.0, 5, 0.4))
        row = statistics.row(np.array([[0.4, 0.1, 0.1, 0.001]]))
        assert row["episode_return_mean"] == 3.0
        assert row["episode_return_least_exploring"] is row["epsilon_least_exploring"] is None

    def test_where_all_explore_alike_the_least_exploring_are_all(self) -> None:
        statistics = EpisodeStatistics()
        for i in range(150):
            statistics.add(Episode(i % 2, i % 3, float(i), 5, 1 - i / 1000))
        alike = np.full((2, 3), 0.85)
        for epsilons in (None, alike, alike + np.arange(6).reshape(2, 3) / 1e4):
            row = statistics.row(epsilons)
            assert row["episode_return_least_exploring"] == row["episode_return_mean"]
            assert row["epsilon_least_exploring"] == row["episode_epsilon_mean"]

    def test_every_episode_is_handed_over_once_together_with_the_row_that_counts_it(self) -> None:
        statistics, epsilons = EpisodeStatistics(), np.full((1, 1), 0.1)
        played = [Episode(0, 0, float(i), 5, 0.1) for i in range(300)]
        assert statistics.take(epsilons)[1] == []
        for i, episode in enumerate(played):
            statistics.add(episode)
            assert statistics.num_new == i % 150 + 1
            if i % 150 == 149:
                row, new = statistics.take(epsilons)
                assert new == played[i - 149 : i + 1]  # more than the window of the means
                assert row["episodes"] == i + 1
        assert statistics.num_new == 0

    def test_no_episode_is_lost_between_threads(self) -> None:
        statistics = EpisodeStatistics()
        taken: list[Episode] = []

        def play(actor: int) -> None:
            for i in range(500):
                statistics.add(Episode(actor, i % 3, float(actor), 1, 0.1))
                statistics.row()
            taken.extend(statistics.take(np.full((4, 3), 0.1))[1])

        threads = [threading.Thread(target=play, args=(actor,)) for actor in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statistics.row()["episodes"] == len(taken) == 2000
        assert [(one.actor, one.episodes, one.return_mean) for one in statistics.actors()] == [
            (actor, 500, float(actor)) for actor in range(4)
        ]

    def test_goes_on_after_a_checkpoint(self, tmp_path: Path) -> None:
        before, after = EpisodeStatistics(), EpisodeStatistics()
        epsilons = np.array([[0.4, 0.1, 0.01], [0.2, 0.05, 0.001]])
        for i in range(120):
            before.add(Episode(i % 2, i % 3, float(i), i, 0.1, None if i % 5 else 1.0))
            if i == 99:
                before.take(epsilons)
        state = before.state()
        assert written_before(state) == 100
        checkpoints.save(tmp_path, 1, state, keep=1)
        after.restore(checkpoints.restore(tmp_path, 1)[1])
        assert [one.episodes for one in after.actors()] == [60, 60]
        for _ in range(2):
            assert after.row(epsilons) == before.row(epsilons)
            assert after.groups(epsilons) == before.groups(epsilons)
            for statistics in (before, after):
                statistics.add(Episode(1, 0, 5.0, 5, 0.2))
        (row, new), (expected_row, expected_new) = after.take(epsilons), before.take(epsilons)
        assert (row, new) == (expected_row, expected_new)
        assert len(new) == 22


class TestGroups:
    @pytest.mark.parametrize(
        ("number", "sizes"),
        [(1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (5, [2, 1, 1, 1]), (8, [2, 2, 2, 2]), (360, [90] * 4)],
    )
    def test_a_ladder_falls_into_quarters(self, number: int, sizes: list[int]) -> None:
        rungs = [ladder(index, number) for index in range(number)]
        shape = (number // 2, 2) if number % 2 == 0 else (number, 1)
        groups = group_environments(np.array(rungs, np.float32).reshape(shape))
        assert [len(group) for group in groups] == sizes
        order = [actor * shape[1] + environment for group in groups for actor, environment in group]
        assert order == list(range(number))[::-1]  # index 0 explores most

    def test_environments_of_one_epsilon_stay_together(self) -> None:
        epsilons = np.array([[0.4, 0.01, 0.01, 0.4], [0.01, 0.4, 0.01, 0.01]])
        low, high = [(0, 1), (0, 2), (1, 0), (1, 2), (1, 3)], [(0, 0), (0, 3), (1, 1)]
        assert group_environments(epsilons) == [low, high]
        assert group_environments(0.5 - epsilons) == [high, low]
        assert [len(group) for group in group_environments(np.array([[0.4] * 15 + [0.1]]))] == [1, 15]
        assert [len(group) for group in group_environments(np.array([[0.4] + [0.1] * 15]))] == [15, 1]

    @pytest.mark.parametrize(
        "epsilons",
        [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, 0.501, 0.502]],
    )
    def test_all_alike_are_one_group(self, epsilons: list[float]) -> None:
        assert group_environments(np.array([epsilons])) == [[(0, 0), (0, 1), (0, 2)]]


class TestWriter:
    ROW: ClassVar[dict] = {"frames": 4000, "wall_seconds": 12.5, "loss": None}

    def test_a_line_per_game_with_the_frames_and_seconds_of_its_row(self, tmp_path: Path) -> None:
        with EpisodeWriter(tmp_path) as writer:
            writer.write([Episode(3, 1, -21.0, 812, 0.00065536, -20.0)], self.ROW)
            writer.write([], self.ROW | {"frames": 4004})
            two = [Episode(0, 0, 1e6, 5, 0.4), Episode(0, 1, 2.5, 6, 0.3)]
            writer.write(two, self.ROW | {"frames": 5000})
            assert (tmp_path / EPISODES).read_text().splitlines() == [
                "frames,wall_seconds,actor,environment,epsilon,episode_return,training_return,steps",
                "4000,12.5,3,1,0.00065536,-21,-20,812",
                "5000,12.5,0,0,0.4,1000000.000,,5",
                "5000,12.5,0,1,0.3,2.5,,6",
            ]
        games = read_episodes(tmp_path)
        assert list(games) == list(EPISODE_COLUMNS)
        assert games["episode_return"].tolist() == [-21, 1e6, 2.5]
        assert np.isnan(games["training_return"]).tolist() == [False, True, True]
        assert read_episodes(tmp_path / EPISODES)["steps"].tolist() == [812, 5, 6]
        writer.close()  # once more does no harm

    def _first_start(self, directory: Path) -> None:
        with EpisodeWriter(directory) as writer:
            for frames in (100, 200, 200, 300):
                writer.write([Episode(0, 0, float(frames), 5, 0.1)] * 2, self.ROW | {"frames": frames})

    @pytest.mark.parametrize(
        ("frames", "written", "left"),
        [(None, None, 0), (0, None, 0), (150, None, 2), (200, None, 6), (200, 4, 4), (300, 99, 8)],
    )
    def test_games_beyond_the_checkpoint_are_cut(
        self, tmp_path: Path, frames: int | None, written: int | None, left: int
    ) -> None:
        self._first_start(tmp_path)
        EpisodeWriter(tmp_path, frames, written).close()
        scores = read_episodes(tmp_path)["episode_return"].tolist()
        assert scores == [100, 100, 200, 200, 200, 200, 300, 300][:left]

    def test_a_game_torn_by_a_kill_is_dropped(self, tmp_path: Path) -> None:
        self._first_start(tmp_path)
        path = tmp_path / EPISODES
        path.write_bytes(path.read_bytes()[:-2])
        assert len(read_episodes(path)["frames"]) == 7
        with EpisodeWriter(tmp_path, 300) as writer:
            writer.write([Episode(0, 0, 7.0, 5, 0.1)], self.ROW)
        assert read_episodes(path)["episode_return"].tolist()[-2:] == [300, 7]

    def test_other_columns_are_refused_and_missing_ones_are_empty(self, tmp_path: Path) -> None:
        path = tmp_path / EPISODES
        path.write_text("frames,episode_return\n100,3\n")
        with EpisodeWriter(tmp_path, 200) as writer:
            writer.write([Episode(0, 2, 7.0, 5, 0.1)], self.ROW)
        games = read_episodes(path)
        assert games["episode_return"].tolist() == [3, 7]
        assert np.isnan(games["environment"]).tolist() == [True, False]
        path.write_text("frames,lives\n100,3\n")
        for use in (lambda: EpisodeWriter(tmp_path, 200), lambda: read_episodes(tmp_path)):
            with pytest.raises(GorilaError, match=r"episodes\.csv has other columns.*does not know: lives"):
                use()
        assert path.read_text() == "frames,lives\n100,3\n"

    def test_a_disk_that_refuses_is_an_error_with_the_path(self, tmp_path: Path) -> None:
        (tmp_path / EPISODES).mkdir()
        with pytest.raises(GorilaError, match=r"episodes\.csv"):
            EpisodeWriter(tmp_path)

    def test_no_games(self, tmp_path: Path) -> None:
        with pytest.raises(GorilaError, match=r"cannot read .*episodes\.csv"):
            read_episodes(tmp_path)
