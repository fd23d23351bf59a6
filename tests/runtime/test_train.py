"""`train` in this process: what a resumed run takes up, and the self-test."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gorila_jax import checkpoints
from gorila_jax.config import ActorConfig, override
from gorila_jax.rl.exploration import linear_schedule
from gorila_jax.runtime import train as train_module
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.episodes import read_episodes
from gorila_jax.runtime.metrics import read_metrics
from gorila_jax.runtime.train import train
from gorila_jax.types import ConfigError, ReplayError, RunError
from tests.doubles import CounterEnv, episode
from tests.runtime.systems import config_of

SETTINGS = {
    "actor.num_actors": 2,
    "actor.epsilon_decay_updates": 2_000,
    "learner.num_learners": 2,
    "parameter_server.num_shards": 2,
    "parameter_server.target_period_updates": 7,
    "replay.samples_per_insert": 4.0,
    "replay.learning_starts_steps": 100,
    "run.log_period_seconds": 0.0,
    "checkpoint.period_seconds": 1e9,
}


def run(workdir, total_frames, **overrides):
    config = config_of(**SETTINGS | {"run.total_frames": total_frames} | overrides)
    result = train(config, workdir)
    assert result.exit_code == 0
    return checkpoints.restore_latest(workdir / "checkpoints")[1]


def counts_of_adam(state) -> set[int]:
    """How many updates the optimizer's state says it has seen, shard by shard."""
    leaves = jax.tree_util.tree_flatten_with_path(state["server"])[0]
    return {int(value) for path, leaf in leaves if "count" in jax.tree_util.keystr(path[-1:])
            for value in np.ravel(leaf)}  # fmt: skip


def test_counters_epsilon_optimizer_and_target_go_on(tmp_path):
    before = run(tmp_path, 600)
    after = run(tmp_path, 900)
    updates = before["counters"]["updates"]
    assert updates > 100
    assert updates in counts_of_adam(before)
    assert after["counters"]["updates"] in counts_of_adam(after)
    assert after["counters"]["updates"] > updates
    assert after["counters"]["generation"] == 1
    for now, then in zip(after["learners"], before["learners"], strict=True):
        assert now["updates"] > then["updates"]
    metrics = read_metrics(tmp_path)
    assert (np.diff(metrics["frames"]) > 0).all()
    assert (np.diff(metrics["updates"]) >= 0).all()
    assert (np.diff(metrics["epsilon"]) <= 1e-6).all()
    resumed = metrics["frames"] > before["counters"]["frames"]
    at_resume = linear_schedule(updates, 1.0, 0.05, 2_000)
    assert metrics["epsilon"][resumed][0] == pytest.approx(at_resume, abs=1e-3)


def test_without_the_replay_it_is_said_and_no_update_is_made_before_it_has_filled_again(tmp_path):
    before = run(tmp_path, 600)["counters"]
    after = run(tmp_path, before["frames"] + 90)["counters"]
    assert "replay is empty: it fills again before learning goes on" in (tmp_path / "log.txt").read_text()
    assert after["frames"] >= before["frames"] + 90
    assert after["updates"] == before["updates"]  # 100 items are needed
    metrics = read_metrics(tmp_path)
    assert metrics["replay_size_items"][metrics["frames"] > before["frames"]].max() < 100


def test_with_the_replay_its_items_are_back_and_learning_goes_on_at_once(tmp_path):
    before = run(tmp_path, 600, **{"replay.checkpoint": True})["counters"]
    after = run(tmp_path, before["frames"] + 40, **{"replay.checkpoint": True})["counters"]
    assert "with its replay" in (tmp_path / "log.txt").read_text()
    assert after["updates"] > before["updates"]
    # The limiter goes on too: no burst of updates for the items that were trained on before.
    assert after["sampled_items"] <= SETTINGS["replay.samples_per_insert"] * after["inserted_items"]
    metrics = read_metrics(tmp_path)
    sizes = metrics["replay_size_items"]
    last = sizes[metrics["frames"] <= before["frames"]][-1]
    assert last > 500
    assert sizes[metrics["frames"] > before["frames"]][0] >= last


@pytest.mark.parametrize("length", [10, 80])  # episodes have 9 steps
def test_a_recurrent_run_goes_on_with_its_sequences(tmp_path, length):
    settings = {
        "replay.checkpoint": True,
        "run.log_period_seconds": 0.0,
        "replay.learning_starts_steps": 40,
        "sequence.length_steps": length,
        "sequence.overlap_steps": length // 2,
        "sequence.burn_in_steps": length // 2,
    }

    def go_on(total_frames):
        config = config_of("r2d2", **settings | {"run.total_frames": total_frames})
        assert train(config, tmp_path).exit_code == 0
        return checkpoints.restore_latest(tmp_path / "checkpoints")[1]["counters"]

    before = go_on(600)
    after = go_on(before["frames"] + 60)
    assert "with its replay" in (tmp_path / "log.txt").read_text()
    assert after["updates"] > before["updates"] > 0
    metrics = read_metrics(tmp_path)
    resumed = metrics["frames"] > before["frames"]
    assert metrics["replay_size_items"][resumed][0] >= metrics["replay_size_items"][~resumed][-1] > 20


def test_the_end_tells_each_actor_s_episodes_and_epsilon(tmp_path):
    state = run(tmp_path, 600)
    said = (tmp_path / "log.txt").read_text()
    for actor in range(2):
        assert f"actor {actor}: {state['episodes']['totals'][str(actor)]} episodes" in said


def test_a_ladder_s_end_is_told_by_epsilon_in_a_handful_of_lines(tmp_path):
    ladder = {"agent": "apex", "learner.num_learners": 1, "parameter_server.num_shards": 1}
    ladder["actor.epsilon_decay_updates"] = ActorConfig().epsilon_decay_updates  # a ladder has no decay
    run(tmp_path, 2_000, **ladder | {"env.num_environments": 20})
    lines = (tmp_path / "log.txt").read_text().splitlines()
    (headline,) = (i for i, line in enumerate(lines) if line.startswith("returns by exploration"))
    table = [line.split() for line in lines[headline + 2 : headline + 6]]
    assert [row[3] for row in table] == ["10"] * 4
    assert (table[0][0], table[3][2]) == ("0.000655", "0.400")
    assert not any(line.startswith("actor ") for line in lines)
    games = read_episodes(tmp_path)
    rungs = 0.4 ** (1 + 7 * (20 * games["actor"] + games["environment"]) / 39)
    assert games["epsilon"] == pytest.approx(rungs, rel=1e-5)


def test_every_game_is_in_the_file_once_over_all_starts(tmp_path):
    run(tmp_path, 600)
    after = run(tmp_path, 900)
    metrics, games = read_metrics(tmp_path), read_episodes(tmp_path)
    for frames, episodes in zip(metrics["frames"], metrics["episodes"], strict=True):
        assert np.count_nonzero(games["frames"] <= frames) == episodes
    assert len(games["frames"]) == sum(after["episodes"]["totals"].values())
    streams = set(zip(games["actor"], games["environment"], strict=True))
    assert streams == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert set(games["frames"]) <= set(metrics["frames"])
    assert (np.diff(games["wall_seconds"]) >= 0).all()
    assert games["steps"].tolist() == [9] * len(games["steps"])
    assert set(games["episode_return"]) <= {-1, 1}


def test_a_pool_that_resets_in_another_way_is_refused_at_the_start(tmp_path, monkeypatch):
    def make(name, config, **kwargs):
        return CounterEnv([[episode(3)]], same_step_reset=True)

    monkeypatch.setattr(train_module, "make_environment", make)
    with pytest.raises(ConfigError, match="reset"):
        train(config_of(), tmp_path)
    assert checkpoints.list_checkpoints(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_environment_that_calls_sys_exit_fails_the_run(tmp_path, lockstep):
    settings = {"replay.backend": "memory", "run.total_frames": 100, "run.lockstep": lockstep}
    environment = "tests.environments.user_environments:exiting"
    with pytest.raises(RunError, match="the run failed with SystemExit"):
        train(make_config("gorila", environment, overrides=settings), tmp_path)
    assert "SystemExit" in (tmp_path / "log.txt").read_text()


def test_a_run_that_never_started_leaves_the_directory_to_the_corrected_command(tmp_path, monkeypatch):
    def refuse(*arguments, **more):
        raise ReplayError("no replay server answers")

    settings = {"replay.backend": "memory", "run.total_frames": 100}
    config = make_config("gorila", "Catch-v0", overrides=settings)
    with monkeypatch.context() as broken:
        broken.setattr(train_module, "build_system", refuse)
        with pytest.raises(ReplayError):
            train(config, tmp_path / "w")
    corrected = override(config, {"learner.batch_size": 8})
    assert train(corrected, tmp_path / "w").exit_code == 0
