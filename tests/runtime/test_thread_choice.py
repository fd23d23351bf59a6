"""The choice of a pool's threads, on a clock that the environments move."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.environments.cores import usable_cores
from gorila_jax.environments.names import is_toy
from gorila_jax.runtime.pool_threads import ROUNDS, fewest_of_the_fastest, steps_per_second, thread_choices
from gorila_jax.types import ConfigError, EnvironmentStep
from tests.doubles import CounterEnv, episode


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Slow(CounterEnv):
    """Its steps take `seconds` each; every twentieth one `hiccup` more."""

    def __init__(self, clock: Clock, size: int, seconds: float, hiccup: float = 0.0):
        super().__init__([[episode(3)]] * size)
        self._clock, self._seconds, self._hiccup = clock, seconds, hiccup

    def recv(self) -> EnvironmentStep:
        self._clock.now += self._seconds + self._hiccup * (len(self.actions) % 20 == 0)
        return super().recv()


@pytest.mark.parametrize(
    ("most", "choices"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (4, (1, 2, 4)), (16, (1, 8, 16))]
)
def test_one_half_and_all(most, choices):
    assert thread_choices(most) == choices


def test_the_cores_of_this_process_count_and_not_the_machine_s(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert usable_cores() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    assert usable_cores() == 64


def test_speed_is_steps_of_all_environments_over_time():
    clock = Clock()
    environments = [Slow(clock, 4, 0.01), Slow(clock, 4, 0.02)]
    began = clock.now
    assert steps_per_second(environments, clock, seconds=1.0) == pytest.approx([400, 200])
    assert 1.0 <= clock.now - began < 1.0 + ROUNDS * (0.01 + 0.02)
    taken = [len(environment.actions) for environment in environments]
    assert taken == [pytest.approx(50, abs=ROUNDS), pytest.approx(25, abs=ROUNDS)]


def test_a_hiccup_in_one_turn_does_not_count():
    clock = Clock()
    environments = [Slow(clock, 2, 0.01, hiccup=0.5), Slow(clock, 2, 0.012)]
    steady, _ = steps_per_second(environments, clock, seconds=0.5)
    assert steady == pytest.approx(200)


def test_every_environment_moves_at_least_once_a_turn_however_slow_it_is():
    clock = Clock()
    environment = Slow(clock, 1, 30.0)
    assert steps_per_second([environment], clock, seconds=1.0) == [pytest.approx(1 / 30)]
    assert len(environment.actions) == ROUNDS


def test_the_actions_are_of_all_kinds_and_the_same_every_time():
    received = []
    for _ in range(2):
        clock = Clock()
        environment = Slow(clock, 3, 0.01)
        steps_per_second([environment], clock, seconds=1.0)
        received.append(np.stack(environment.actions))
    np.testing.assert_array_equal(*received)
    assert set(received[0].ravel()) == set(range(environment.spec.num_actions))


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ({1: 100.0, 2: 104.0, 4: 104.9}, 1),
        ({1: 100.0, 2: 106.0, 4: 106.1}, 2),
        ({1: 100.0, 2: 106.0, 4: 112.0}, 4),
        ({1: 100.0, 8: 60.0, 16: 20.0}, 1),
        ({1: 10.0, 8: 100.0, 16: 20.0}, 8),
    ],
)
def test_fewer_threads_are_preferred_unless_more_are_much_faster(speeds, chosen):
    assert fewest_of_the_fastest(speeds) == chosen


@pytest.mark.parametrize(
    ("name", "toy"),
    [("Catch-v0", True), ("cartpole", True), ("Pong-v5", False), ("LunarLander-v3", False), ("a:b", False)],
)
def test_toys(name, toy):
    assert is_toy(name) == toy


def test_an_unknown_name_is_no_toy_but_an_error():
    with pytest.raises(ConfigError, match="not known"):
        is_toy("Poong-v5")
