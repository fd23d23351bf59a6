"""Rows, stalls and checkpoints of a run, on a clock that the test moves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gorila_jax import checkpoints
from gorila_jax.runtime import monitor as monitor_module
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.episodes import EpisodeWriter, read_episodes, written_before
from gorila_jax.runtime.metrics import COLUMNS, MetricsWriter, read_metrics
from gorila_jax.runtime.monitor import Monitor
from tests.runtime.systems import build, config_of

SETTINGS = {
    "actor.num_actors": 2,
    "replay.samples_per_insert": 2.0,
    "run.log_period_seconds": 1e9,
    "checkpoint.period_seconds": 1e9,
}


class Games:
    """Stands in for the writer of finished games."""

    def __init__(self):
        self.written = []  # (frames, episodes)

    def write(self, episodes, row):
        self.written.append((row["frames"], episodes))


class Watch:
    """A system, its monitor, and what the monitor wrote and said."""

    def __init__(self, monkeypatch, directory, frames_per_step=1, writers=None, **overrides):
        self.now = 1000.0
        monkeypatch.setattr(monitor_module.time, "monotonic", lambda: self.now)
        self.config = config_of(**SETTINGS | overrides)  # `agent` among them
        self.coordinator = Coordinator(10**9)
        system = build(self.config, coordinator=self.coordinator)
        self.system = system._replace(spec=system.spec._replace(frames_per_step=frames_per_step))
        self.rows, self.notes = [], []
        self.directory = directory
        self.games = Games()
        metrics, games = writers or (self, self.games)
        self.monitor = Monitor(
            self.system, self.coordinator, metrics, games, self, str(directory), generation=0
        )

    def write(self, row):  # as the writer of metrics
        self.rows.append(row)
        return row

    def update(self, row, explanation): ...  # as the progress display

    def note(self, text):
        self.notes.append(text)

    def act(self, num_steps):
        return sum(actor.step(0.0) for _ in range(num_steps) for actor in self.system.actors)

    def learn(self):
        while self.system.learners[0].step(0.0):
            pass

    def ticks(self, seconds):
        """Lets time go by in the run's own ticks of a quarter of a second."""
        for _ in range(math.ceil(seconds / 0.25)):
            self.now += 0.25
            self.monitor.tick()


@pytest.fixture
def watch(monkeypatch, tmp_path):
    return lambda **more: Watch(monkeypatch, tmp_path, **more)


def test_thirty_seconds_without_progress_are_said_with_who_waits_for_what_and_said_again(watch):
    one = watch()
    one.act(500)  # until replay takes no more: no learner draws from it
    one.ticks(30)
    (said,) = one.notes
    assert said.startswith("nothing has moved for 2")
    for part in ("inserts must wait", "samples may go on", "inserted", "0 sampled"):
        assert part in said
    one.ticks(20)
    assert len(one.notes) == 2


def test_the_other_side_is_said_too(watch):
    one = watch()
    one.act(3)  # and then an environment hangs
    one.ticks(30)
    assert "inserts may go on, samples must wait" in one.notes[0]


def test_while_anything_moves_nothing_is_said(watch):
    one = watch(**{"replay.samples_per_insert": 0.0})
    for _ in range(20):
        one.ticks(10)
        assert one.act(1)
    assert not one.notes


def test_the_frames_of_the_first_update_are_said_once_and_not_again_after_a_resume(watch):
    one = watch(frames_per_step=4)
    one.act(20)
    one.ticks(1)
    assert not one.notes
    one.learn()
    one.ticks(1)
    assert one.notes == [f"first update at {4 * one.coordinator.steps:,} frames"]
    other = watch(frames_per_step=4)
    other.system.restore(one.system.state())
    other.monitor.restore(one.monitor.counts())
    other.ticks(1)
    assert not other.notes


def test_a_row_has_every_column_and_says_what_was_done(watch):
    one = watch(frames_per_step=4)
    for _ in range(50):
        one.act(1)
        one.learn()
    one.now += 10.0
    one.system.actors[0].parameter_version -= 1  # one that has pulled earlier than the other
    row = one.monitor.write_row()
    assert set(row) == set(COLUMNS)
    steps, updates = one.coordinator.steps, one.system.server.status().version
    assert (row["steps"], row["frames"], row["updates"]) == (steps, 4 * steps, updates)
    assert row["frames_per_second"] == pytest.approx(4 * steps / 10)
    assert row["updates_per_second"] == pytest.approx(updates / 10)
    assert row["inserts_per_second"] == pytest.approx(one.system.replay.status(0).inserted_items / 10)
    assert row["samples_per_second"] == pytest.approx(updates * 8 / 10)
    assert row["gradients_accepted"] == updates
    assert row["learning_rate"] == pytest.approx(one.system.config.parameter_server.learning_rate)
    lags = [updates - actor.parameter_version for actor in one.system.actors]
    assert row["parameter_lag_updates"] == pytest.approx(sum(lags) / 2)
    assert row["parameter_lag_updates_max"] == max(lags) > min(lags)
    assert row["episodes"] > 0
    assert row["wall_seconds"] == pytest.approx(10.0)


def test_a_replay_of_several_tables_fills_until_each_holds_its_share(watch):
    one = watch(**{"replay.num_servers": 2})
    one.act(4)
    assert one.monitor.write_row()["bottleneck"] == "filling replay"
    one.act(8)  # each actor has fed its table 24 steps of the first 32, of which 16 are its share
    assert one.monitor.write_row()["bottleneck"] != "filling replay"


def test_rates_are_of_the_time_since_the_row_before(watch):
    one = watch()
    one.act(10)
    one.now += 5.0
    one.monitor.write_row()
    one.now += 5.0
    assert one.monitor.write_row()["frames_per_second"] == 0


def test_samples_per_insert_counts_what_was_trained_on_and_not_what_replay_handed_out(watch):
    one = watch()
    one.act(50)
    one.learn()
    drawn = one.system.replay.status(0).sampled_items
    one.act(50)
    sampler = one.system.samplers[0]
    assert sampler.sample(0.0) is not None  # drawn ahead, never trained on
    row = one.monitor.write_row()
    inserted = sum(writer.inserted_items for writer in one.system.writers)
    assert row["samples_per_insert"] == pytest.approx(drawn / inserted)
    assert one.system.replay.status(0).sampled_items == drawn + 8


def test_rows_and_checkpoints_come_when_they_are_due(watch):
    one = watch(**{"run.log_period_seconds": 5.0, "checkpoint.period_seconds": 12.0})
    one.act(1)
    one.ticks(4.75)
    assert not one.rows
    one.ticks(5.5)
    assert len(one.rows) == 2
    assert checkpoints.list_checkpoints(one.directory) == []
    one.ticks(2)
    assert checkpoints.list_checkpoints(one.directory) == [one.coordinator.steps]


def test_a_resumed_run_counts_on(watch):
    one = watch()
    for _ in range(50):
        one.act(1)
        one.learn()
    one.monitor.checkpoint()
    frames, state = checkpoints.restore_latest(one.directory)
    assert frames == state["counters"]["frames"] == one.coordinator.steps

    other = watch()
    other.system.restore(state)
    other.monitor.restore(state["counters"])
    assert other.monitor.counts() == one.monitor.counts()
    other.act(5)
    counts = other.monitor.counts()
    assert counts["steps"] == counts["frames"] > frames
    assert counts["inserted_items"] > state["counters"]["inserted_items"]
    row = other.monitor.write_row()
    # Over the whole run, and not as if the items before the resume had never been.
    assert row["samples_per_insert"] == pytest.approx(counts["sampled_items"] / counts["inserted_items"])
    assert row["updates"] == state["counters"]["updates"]


FREE = {"replay.samples_per_insert": 0.0}  # actors never wait


def test_games_are_written_once_each_together_with_the_row_that_counts_them(watch):
    one = watch(frames_per_step=4, **FREE)
    for _ in range(3):
        one.act(20)
        one.monitor.write_row()
    assert [frames for frames, _ in one.games.written] == [row["frames"] for row in one.rows]
    counts = [len(games) for _, games in one.games.written]
    assert min(counts) > 0
    assert [row["episodes"] for row in one.rows] == list(np.cumsum(counts))


def test_a_row_comes_early_where_many_games_wait_for_it(watch, monkeypatch):
    monkeypatch.setattr(monitor_module, "MAX_NEW_EPISODES", 5)
    one = watch(**FREE)
    one.act(20)
    waiting = one.system.episodes.num_new
    assert waiting > 5
    one.ticks(0.5)
    assert [len(games) for _, games in one.games.written] == [waiting]


def test_the_least_exploring_are_those_of_the_ladder_s_lowest_quarter(watch):
    one = watch(agent="apex", **FREE | {"env.num_environments": 4})
    one.act(60)
    row = one.monitor.write_row()
    assert row["epsilon_least_exploring"] == pytest.approx((0.4**7 + 0.4**8) / 2, rel=0.05)
    assert row["episode_epsilon_mean"] > 0.05
    other = watch(**FREE)
    other.act(60)
    row = other.monitor.write_row()
    assert row["episode_return_least_exploring"] == row["episode_return_mean"]


@pytest.mark.parametrize("stand_still", [False, True])
def test_a_resumed_run_has_every_game_once(watch, tmp_path, stand_still):
    """Whatever was written between the checkpoint and the kill, at the frames of the checkpoint too."""
    writers = MetricsWriter(tmp_path), EpisodeWriter(tmp_path)
    one = watch(writers=writers, **FREE)
    one.act(20)
    one.monitor.write_row()
    one.act(20)  # games that have ended and are not yet written
    assert one.system.episodes.num_new == 8  # two of each environment
    one.monitor.checkpoint()
    if stand_still:
        one.monitor.write_row()
    one.act(20)
    one.monitor.write_row()  # of a future that will not be

    frames, state = checkpoints.restore_latest(tmp_path)
    writers = (
        MetricsWriter(tmp_path, frames),
        EpisodeWriter(tmp_path, frames, written_before(state["episodes"])),
    )
    other = watch(writers=writers, **FREE)
    other.system.restore(state)
    other.monitor.restore(state["counters"])
    for _ in range(2):
        other.act(20)
        other.monitor.write_row()
    metrics, games = read_metrics(tmp_path), read_episodes(tmp_path)
    for row_frames, episodes in zip(metrics["frames"], metrics["episodes"], strict=True):
        written = int(np.count_nonzero(games["frames"] <= row_frames))
        # The row that was written at the frames of the checkpoint stays; its games come with the next one.
        assert written == episodes or (stand_still and row_frames == frames)
    assert len(games["frames"]) == other.system.episodes.row()["episodes"] == 8 + 8 + 16
