"""How many threads the environment pools of a run get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gorila_jax import checkpoints
from gorila_jax.config import Config, override
from gorila_jax.runtime import configure, pool_threads
from gorila_jax.runtime import train as train_module
from gorila_jax.runtime.plan import Plan
from gorila_jax.runtime.pool_threads import choose_pool_threads
from gorila_jax.types import Environment
from tests.doubles import CounterEnv, episode


class Bench:
    """Stands in for the environments and their speeds, and keeps what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int, **speeds: float):
        self.made: list[tuple[int, int]] = []  # threads and environments of each
        self.environments: list[CounterEnv] = []
        self.speeds = {int(name.removeprefix("of_")): speed for name, speed in speeds.items()}
        monkeypatch.setattr(pool_threads, "usable_cores", lambda: cores)
        monkeypatch.setattr(pool_threads, "make_environment", self.make)
        monkeypatch.setattr(pool_threads, "steps_per_second", self.measure)

    def make(self, name: str, env: Any, *, seed: int, num_environments: int) -> Environment:
        self.made.append((env.num_threads, num_environments))
        self.environments.append(CounterEnv([[episode(3)]] * num_environments))
        return self.environments[-1]

    def measure(self, environments: list[Environment], clock: Any, seconds: float) -> list[float]:
        assert environments == self.environments
        assert clock() <= clock()
        assert seconds <= 2
        return [self.speeds[threads] for threads, _ in self.made]


def config_of(environment: str = "Pong-v5", **values: Any) -> Config:
    return override(Config(environment=environment), values)


def test_the_fastest_is_taken_and_all_are_told(monkeypatch):
    bench = Bench(monkeypatch, 8, of_1=1000.0, of_4=3000.0, of_8=2000.0)
    notes: list[str] = []
    assert choose_pool_threads(config_of(), notes.append) == 4
    assert bench.made == [(1, 16), (4, 16), (8, 16)]
    assert all(environment.closed for environment in bench.environments)
    assert notes == [
        "environments in 4 threads for each actor, measured in steps/s on 16 of them: "
        "1: 1,000, 4: 3,000, 8: 2,000"
    ]


@pytest.mark.parametrize(
    ("cores", "actors", "size", "made"),
    [
        (4, 2, 16, [(1, 8), (2, 8)]),  # the actors share the cores
        (16, 1, 4, [(1, 4), (2, 4), (4, 4)]),  # no more threads than environments
        (2, 1, 64, [(1, 8), (2, 8)]),  # no more environments than the measurement needs
    ],
)
def test_what_is_measured(monkeypatch, cores, actors, size, made):
    bench = Bench(monkeypatch, cores, of_1=1.0, of_2=2.0, of_4=1.0)
    config = config_of(**{"actor.num_actors": actors, "env.num_environments": size})
    assert choose_pool_threads(config, lambda _: None) == 2
    assert bench.made == made


@pytest.mark.parametrize(
    ("cores", "environment", "values", "given"),
    [
        (1, "Pong-v5", {}, 1),
        (4, "Pong-v5", {"actor.num_actors": 4}, 1),
        (4, "Pong-v5", {"actor.num_actors": 9}, 1),
        (8, "Pong-v5", {"env.num_threads": 3}, 3),
        (8, "Pong-v5", {"env.num_threads": 3, "actor.num_actors": 8}, 3),
        (8, "Pong-v5", {"run.lockstep": True}, 8),
        (8, "Pong-v5", {"run.lockstep": True, "actor.num_actors": 3}, 2),
        (8, "Catch-v0", {}, 1),
        (8, "Catch-v0", {"env.num_threads": 2}, 2),
        (8, "tests.environments.user_environments:Walk", {}, 0),
    ],
)
def test_what_is_not_measured(monkeypatch, cores, environment, values, given):
    bench = Bench(monkeypatch, cores)
    notes: list[str] = []
    assert choose_pool_threads(config_of(environment, **values), notes.append) == given
    assert bench.made == []
    assert notes == []


def test_pools_are_closed_where_the_measurement_fails(monkeypatch):
    bench = Bench(monkeypatch, 2)
    with pytest.raises(KeyError):
        choose_pool_threads(config_of(), lambda _: None)
    assert [environment.closed for environment in bench.environments] == [True, True]


def test_on_the_real_game(monkeypatch):
    monkeypatch.setattr(pool_threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(pool_threads, "MEASURE_S", 0.1)
    notes: list[str] = []
    assert choose_pool_threads(config_of(**{"env.num_environments": 2}), notes.append) in (1, 2)
    assert len(notes) == 1


def test_what_was_chosen_is_used_and_stored_nowhere(tmp_path: Path, monkeypatch):
    """A run resumed on another machine is the same experiment there."""
    used: list[int] = []

    def build(plan: Plan, *arguments: Any, **more: Any) -> Any:
        used.append(plan.config.env.num_threads)
        return original(plan, *arguments, **more)

    original = train_module.build_system
    monkeypatch.setattr(train_module, "build_system", build)
    settings = {"replay.backend": "memory", "run.total_frames": 60, "checkpoint.period_seconds": 1000.0}
    for start, chosen in enumerate((3, 2), 1):
        monkeypatch.setattr(train_module, "choose_pool_threads", lambda config, note, chosen=chosen: chosen)
        settings["run.total_frames"] = 60 * start
        config = configure.make_config("gorila", "Catch-v0", overrides=settings)
        assert train_module.train(config, tmp_path).exit_code == 0
        assert json.loads((tmp_path / "config.json").read_text())["env"]["num_threads"] == 0
        _, state = checkpoints.restore_latest(tmp_path / "checkpoints")
        assert state["config"]["env"]["num_threads"] == 0
    assert used == [3, 2]
    assert "env.num_threads" not in (tmp_path / "log.txt").read_text()
