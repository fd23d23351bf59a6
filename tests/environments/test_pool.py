"""Facts about EnvPool that everything after it relies on, and what we make of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import envpool
import numpy as np
import pytest

from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import environment_spec, make_environment
from gorila_jax.environments.pool import PoolEnvironment
from gorila_jax.environments.seeds import environment_seeds
from gorila_jax.types import ConfigError, End, EnvironmentSpec, EnvironmentStep, GorilaError


class Tapped:
    """An EnvPool that also keeps the raw flags of every step."""

    def __init__(self, pool: Any):
        self._pool = pool
        self.raw: list[dict[str, np.ndarray]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def recv(self) -> tuple:
        result = self._pool.recv()
        _, reward, terminated, truncated, info = result
        keep = {key: info[key].copy() for key in ("lives", "elapsed_step")}
        keep |= {"game_over": info["terminated"] == 1, "terminated": terminated, "truncated": truncated}
        self.raw.append({"reward": reward, **keep})
        return result


def make(name: str, size: int = 1, seed: int = 0, training: bool = True, **options: Any) -> PoolEnvironment:
    made = make_environment(
        name, EnvironmentConfig(**options), seed=seed, num_environments=size, training=training
    )
    assert isinstance(made, PoolEnvironment)
    return made


def play(environment: PoolEnvironment, steps: int, seed: int = 0) -> tuple[list[EnvironmentStep], dict]:
    """`steps` random steps after a reset, and EnvPool's raw fields of the same steps, [steps, E] each."""
    tapped = Tapped(environment._pool)
    environment._pool = tapped
    random = np.random.default_rng(seed)
    size, num_actions = environment.num_environments, environment.spec.num_actions
    trace = [environment.reset()]
    trace += [environment.step(random.integers(num_actions, size=size, dtype=np.int32)) for _ in range(steps)]
    environment.close()
    return trace, {key: np.stack([each[key] for each in tapped.raw]) for key in tapped.raw[0]}


def field(trace: list[EnvironmentStep], name: str) -> np.ndarray:
    """One field of all steps but the reset's, [steps, E, ...]."""
    return np.stack([getattr(step, name) for step in trace[1:]])


@pytest.fixture(scope="module")
def breakout() -> tuple[list[EnvironmentStep], dict]:
    """5,000 steps of Breakout with life-loss ends, and a limit of 200 steps so that all ends occur."""
    return play(make("Breakout-v5", size=8, max_frames_per_episode=800), steps=625)


def test_every_end_has_exactly_one_label(breakout):
    trace, raw = breakout
    end = field(trace, "end")
    np.testing.assert_array_equal(end != End.NONE, raw["terminated"] | raw["truncated"])
    np.testing.assert_array_equal(end == End.GAME_OVER, raw["game_over"])
    np.testing.assert_array_equal(end == End.TIME_LIMIT, raw["truncated"] & ~raw["game_over"])
    np.testing.assert_array_equal(end == End.LIFE_LOSS, raw["terminated"] & ~raw["game_over"])
    for kind in End:
        assert np.any(end == kind), kind


def test_discount_is_zero_after_game_over_and_life_loss_only(breakout):
    trace, _ = breakout
    expected = np.where(np.isin(field(trace, "end"), (End.NONE, End.TIME_LIMIT)), np.float32(0.99), 0)
    np.testing.assert_array_equal(field(trace, "discount"), expected)


def test_reset_steps_follow_ends_and_hold_nothing(breakout):
    trace, raw = breakout
    end, first = field(trace, "end"), field(trace, "first")
    np.testing.assert_array_equal(first[1:], end[:-1] != End.NONE)
    assert not first[0].any()
    assert not raw["reward"][first].any()
    assert not end[first].any()
    # Why the step counter cannot tell a reset step: a life loss leaves it where it was.
    after_life_loss = end[:-1] == End.LIFE_LOSS
    assert np.all(raw["elapsed_step"][1:][after_life_loss] > 0)
    assert np.all(raw["elapsed_step"][1:][first[1:] & ~after_life_loss] == 0)


def test_lives_run_down_before_the_game_starts_anew(breakout):
    trace, raw = breakout
    end = field(trace, "end")
    for e in range(8):
        changes = raw["lives"][np.flatnonzero(np.diff(raw["lives"][:, e], prepend=-1)), e]
        assert changes[0] == 5
        for before, after in itertools.pairwise(changes):
            assert after == before - 1 or after == 5
        for t in np.flatnonzero(end[:-1, e] == End.LIFE_LOSS):
            assert raw["lives"][t + 1, e] <= raw["lives"][t, e] < 5
        for t in np.flatnonzero(end[:-1, e] == End.GAME_OVER):
            assert raw["lives"][t, e] == 0
            assert raw["lives"][t + 1, e] == 5
    assert np.any(end == End.GAME_OVER)


def test_a_new_game_shows_nothing_of_the_old_one(breakout):
    trace, _ = breakout
    end, observation = field(trace, "end"), field(trace, "observation")
    fresh = trace[0].observation[0]  # Breakout stands still until the ball is served
    differs = np.any(observation[1:] != fresh, axis=(2, 3))
    assert not np.any(differs[np.isin(end[:-1], (End.GAME_OVER, End.TIME_LIMIT))])
    # After a life loss the same game goes on: the number of balls left is another.
    assert np.all(differs[end[:-1] == End.LIFE_LOSS])


def test_evaluation_plays_whole_games():
    training = make("Breakout-v5")
    assert training.spec.settings["life_loss_is_end"] is True
    training.close()
    evaluation = make("Breakout-v5", size=4, training=False)
    assert evaluation.spec.settings["life_loss_is_end"] is False
    trace, raw = play(evaluation, steps=400)
    end = field(trace, "end")
    assert set(end.ravel()) == {End.NONE, End.GAME_OVER}
    assert np.all(raw["lives"][end == End.GAME_OVER] == 0)


def test_life_loss_is_an_end_only_where_asked_for():
    trace, raw = play(make("Breakout-v5", size=2, life_loss_is_end=False), steps=200)
    assert np.any(np.diff(raw["lives"], axis=0) == -1)
    assert not np.any(field(trace, "end") == End.LIFE_LOSS)


@pytest.mark.slow
def test_atlantis_ends_are_games_and_not_zero_lives():
    trace, raw = play(make("Atlantis-v5", size=4, training=False), steps=2_500)
    ends = np.isin(field(trace, "end"), (End.GAME_OVER, End.TIME_LIMIT)).sum()
    restarts = (raw["elapsed_step"] == 0).sum() + (raw["game_over"][-1] | raw["truncated"][-1]).sum()
    assert ends == restarts > 0
    assert (raw["lives"] == 0).sum() > ends  # what code that watches the lives would count


@pytest.mark.slow
def test_pong_has_one_end_per_game():
    trace, _ = play(make("Pong-v5", size=2), steps=1_300)
    end, reward = field(trace, "end"), field(trace, "reward")
    assert np.all(np.isin(end, (End.NONE, End.GAME_OVER)))
    for e in range(2):
        stops = np.flatnonzero(end[:, e])
        assert len(stops) >= 1
        for start, stop in zip([0, *(stops + 1)], stops, strict=False):
            points = reward[start : stop + 1, e]
            assert max((points > 0).sum(), (points < 0).sum()) == 21


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 10), (1, 40)])
def test_the_frame_limit_is_in_frames(frame_skip, steps):
    trace, _ = play(make("Pong-v5", frame_skip=frame_skip, max_frames_per_episode=40), steps=steps + 1)
    end = field(trace, "end")[:, 0]
    assert end.tolist() == [End.NONE] * (steps - 1) + [End.TIME_LIMIT, End.NONE]


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 27_000), (1, 108_000)])
def test_the_usual_limit_is_108000_frames(frame_skip, steps):
    spec = environment_spec("pong", EnvironmentConfig(frame_skip=frame_skip))
    assert spec.frames_per_step == spec.settings["frame_skip"] == frame_skip
    assert spec.settings["max_steps_per_episode"] == steps
    assert spec.settings["max_frames_per_episode"] == 108_000


def test_a_time_limit_keeps_gamma():
    environment = make("CartPole-v1", max_steps_per_episode=5, discount=0.9)
    trace = [environment.reset()] + [environment.step(np.array([t % 2], np.int32)) for t in range(8)]
    environment.close()
    assert trace[5].end[0] == End.TIME_LIMIT
    assert trace[5].discount[0] == np.float32(0.9)
    assert trace[6].first[0]


def test_rewards_are_raw():
    trace, _ = play(make("MsPacman-v5", size=4), steps=100)
    reward = field(trace, "reward")
    assert reward.max() >= 10
    assert not np.any(reward % 10)


def test_a_game_over_wins_over_a_time_limit_in_the_same_step():
    step = _scripted([{"terminated": 1, "truncated": 1, "info_terminated": 1}])[0]
    assert step.end[0] == End.GAME_OVER
    assert step.discount[0] == 0


def _scripted(results: list[dict], size: int = 1) -> list[EnvironmentStep]:
    """What a PoolEnvironment makes of scripted results of EnvPool."""
    queue = list(results)

    def answer(terminated=0, truncated=0, info_terminated=0, elapsed=1, length=size, env_id=None):
        info = {
            "env_id": np.arange(length) if env_id is None else env_id,
            "elapsed_step": np.full(length, elapsed),
            "terminated": np.full(length, info_terminated),
        }
        flags = np.full(length, bool(terminated)), np.full(length, bool(truncated))
        return np.zeros((length, 1, 2, 2), np.uint8), np.zeros(length, np.float32), *flags, info

    def reset() -> tuple:
        observation, _, _, _, info = answer(elapsed=0)
        return observation, info

    spec = EnvironmentSpec("Scripted", (2, 2), np.dtype(np.uint8), 2, 4, {})
    pool = SimpleNamespace(
        config={"num_envs": size},
        reset=reset,
        send=lambda _: None,
        recv=lambda: answer(**queue.pop(0)),
        close=lambda: None,
    )
    environment = PoolEnvironment(pool, spec, discount=0.99)
    environment.reset()
    return [environment.step(np.zeros(size, np.int32)) for _ in results]


def test_an_empty_batch_is_an_error():
    with pytest.raises(GorilaError, match="Scripted: EnvPool returned 0 results for 2 environments"):
        _scripted([{}, {"length": 0}], size=2)


def test_results_out_of_order_are_an_error():
    with pytest.raises(GorilaError, match="out of order"):
        _scripted([{"env_id": np.array([1, 0])}], size=2)


@pytest.mark.parametrize(
    "results",
    [
        [{"terminated": 1, "info_terminated": 1, "elapsed": 0}],  # already reset where the end is told
        [{"truncated": 1, "elapsed": 5}, {"elapsed": 1}],  # runs on where the reset should be
        [{"elapsed": 3}, {"elapsed": 0}],  # starts anew without an end
    ],
)
def test_another_reset_style_is_an_error(results):
    with pytest.raises(ConfigError, match="does not reset in the step after an end"):
        _scripted(results)


def test_the_expected_reset_style_is_none():
    steps = _scripted(
        [
            {"terminated": 1, "info_terminated": 1, "elapsed": 5},
            {"elapsed": 0},
            {"terminated": 1, "elapsed": 5},
            {"elapsed": 5},  # after a life loss
        ]
    )
    assert [step.end[0] for step in steps] == [End.GAME_OVER, End.NONE, End.LIFE_LOSS, End.NONE]
    assert [step.first[0] for step in steps] == [False, True, False, True]


def test_closing_ends_the_threads():
    before = len(list(Path("/proc/self/task").iterdir()))
    environment = make("Pong-v5", size=8, num_threads=4)
    environment.reset()
    environment.send(np.zeros(8, np.int32))
    assert len(list(Path("/proc/self/task").iterdir())) >= before + 4
    environment.close()
    assert len(list(Path("/proc/self/task").iterdir())) == before


@pytest.mark.parametrize("name", ["Pong-v5", "Catch-v0"])
def test_pools_are_closed_with_a_step_under_way_again_and_again(name):
    for k in range(40):
        environment = make(name, size=6, seed=k, num_threads=2)
        environment.reset()
        environment.step(np.zeros(6, np.int32))
        environment.send(np.zeros(6, np.int32))
        environment.close()


def _observations(name: str, seed: int, actions: list[int], size: int = 1, **options: Any) -> np.ndarray:
    """[len(actions) + 1, E, ...] of fixed actions."""
    environment = make(name, size=size, seed=seed, **options)
    trace = [environment.reset().observation]
    trace += [environment.step(np.full(size, action, np.int32)).observation for action in actions]
    environment.close()
    return np.stack(trace)


@pytest.mark.parametrize("name", ["MsPacman-v5", "Catch-v0", "CartPole-v1"])
def test_the_same_seed_gives_the_same_trace_and_another_one_does_not(name):
    traces = []
    for seed, threads in ((3, 1), (3, 2), (4, 1)):
        environment = make(name, size=2, seed=seed, num_threads=threads)
        random = np.random.default_rng(9)
        trace = [environment.reset()]
        for _ in range(300):
            actions = random.integers(environment.spec.num_actions, size=2, dtype=np.int32)
            trace.append(environment.step(actions))
        environment.close()
        traces.append(trace)
    one, again, other = traces
    for ours, theirs in zip(one, again, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, its)
    assert np.any(field(one, "observation") != field(other, "observation"))


def test_environments_of_one_pool_and_of_two_actors_differ_from_the_start():
    first_frames = [frame for seed in (0, 1) for frame in _observations("MsPacman-v5", seed, [], size=2)[0]]
    assert len({frame.tobytes() for frame in first_frames}) == 4


def test_no_two_environments_of_many_actors_share_a_seed():
    seeds = [seed for actor in range(8) for seed in environment_seeds(actor, 64)]
    assert len(set(seeds)) == 8 * 64
    assert environment_seeds(5, 64) == environment_seeds(5, 64)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31 - 1


def test_randomness_of_an_atari_game_is_in_its_no_ops():
    served = [1, 2, 3, 0] * 12
    one, other = (_observations("Breakout-v5", seed, served) for seed in (1, 2))
    np.testing.assert_array_equal(one[0], other[0])  # nothing moves before the ball is served
    assert np.any(one != other)
    one, other = (_observations("Breakout-v5", seed, served, noop_max=1) for seed in (1, 2))
    np.testing.assert_array_equal(one, other)


def test_sticky_actions_reach_the_game():
    assert environment_spec("pong", EnvironmentConfig()).settings["sticky_action_probability"] == 0
    sticky = EnvironmentConfig(sticky_action_probability=0.25)
    assert environment_spec("pong", sticky).settings["sticky_action_probability"] == 0.25
    up, down = [2] * 20, [3] * 20
    assert np.any(_observations("Pong-v5", 1, up) != _observations("Pong-v5", 1, down))
    always = {"sticky_action_probability": 1.0}  # the no-op of the start is repeated for ever
    np.testing.assert_array_equal(
        _observations("Pong-v5", 1, up, **always), _observations("Pong-v5", 1, down, **always)
    )


def test_action_sets():
    assert environment_spec("pong", EnvironmentConfig()).num_actions == 6
    environment = make("pong", full_action_set=True)
    assert environment.spec.num_actions == environment.spec.settings["num_actions"] == 18
    environment.reset()
    environment.step(np.array([17], np.int32))
    environment.close()


def test_the_protocol_is_told_in_json():
    settings = environment_spec("pong", EnvironmentConfig(noop_max=7)).settings
    assert settings["noop_max"] == 7
    assert settings["fire_on_reset"] is False
    assert settings["reward_clip"] is False
    assert json.loads(json.dumps(settings)) == settings
    assert not any("seed" in key or "thread" in key for key in settings)


@pytest.mark.parametrize(
    ("asked", "size", "cores", "given"), [(0, 8, 3, 3), (0, 2, 3, 2), (5, 8, 3, 5), (9, 8, 3, 8)]
)
def test_thread_count(monkeypatch, asked, size, cores, given):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    arguments = {}

    def spy(name: str, **options: Any) -> Any:
        arguments.update(options)
        return original(name, **options)

    original = envpool.make_gymnasium
    monkeypatch.setattr(envpool, "make_gymnasium", spy)
    make("Catch-v0", size=size, num_threads=asked).close()
    assert arguments["num_threads"] == given


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Pendulum-v1", {}, r"actions are continuous, Box\(1,\); only discrete actions"),
        ("MiniGrid-Empty-5x5-v0", {}, "observations are Dict; only one array of numbers"),
        ("FrozenLake-v1", {}, "observations are Discrete; only one array of numbers"),
        ("Catch-v0", {"noop_max": 3}, "noop_max=3: only Atari games have this, and Catch-v0 is none"),
        ("Catch-v0", {"life_loss_is_end": False}, "life_loss_is_end=False: only Atari"),
        ("CartPole-v1", {"sticky_action_probability": 0.25}, "sticky_action_probability=0.25: only Atari"),
        ("Catch-v0", {"max_steps_per_episode": 5}, "Catch-v0 knows no time limit"),
        ("Catch-v0", {"gymnasium_workers": "processes"}, "Catch-v0 runs in EnvPool's threads"),
        ("Pong-v5", {"max_steps_per_episode": 5}, "Pong-v5 is an Atari game, use max_frames_per_episode"),
        ("Pong-v5", {"noop_max": 0}, "noop_max=0: at least 1"),
        ("Pong-v5", {"frame_skip": 0}, "frame_skip=0: at least 1"),
        ("Pong-v5", {"sticky_action_probability": 1.5}, "sticky_action_probability=1.5: from 0 to 1"),
        ("Pong-v5", {"max_frames_per_episode": 3}, "max_frames_per_episode=3: at least one step"),
        ("Pong-v5", {"num_environments": 0}, "num_environments=0: at least 1"),
        ("Pong-v5", {"num_threads": -1}, "num_threads=-1: at least 0"),
        ("Catch-v0", {"max_steps_per_episode": -1}, "max_steps_per_episode=-1: at least 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(name, EnvironmentConfig(**options), seed=0)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed=-1"):
        make("Catch-v0", seed=-1)


def test_the_picture_is_the_games_own_and_of_the_same_moment():
    config = EnvironmentConfig(num_environments=1)
    drawn = make_environment("Pong-v5", config, seed=2, renderable=True)
    plain = make("Pong-v5", seed=2)
    assert isinstance(drawn, PoolEnvironment)
    ours, theirs = drawn.reset(), plain.reset()
    pictures = []
    for t in range(60):
        np.testing.assert_array_equal(ours.observation, theirs.observation)  # drawing disturbs nothing
        picture = drawn.render()
        assert picture.shape == (210, 160, 3)
        assert picture.dtype == np.uint8
        pictures.append(picture)
        actions = np.array([2 + t % 2], np.int32)
        ours, theirs = drawn.step(actions), plain.step(actions)
    assert np.any(pictures[0][..., 0] != pictures[0][..., 1])  # in colour
    assert np.any(pictures[0] != pictures[-1])
    # The input is the grey maximum of the last two frames, shrunk: the picture has the same bright spots.
    rows, columns = (np.arange(84) + 0.5) * 210 / 84, (np.arange(84) + 0.5) * 160 / 84
    shrunk = drawn.render().mean(axis=-1)[rows.astype(int)][:, columns.astype(int)]
    now = np.corrcoef(shrunk.ravel(), ours.observation[0].ravel())[0, 1]
    assert now > 0.9
    drawn.close()
    plain.close()


def test_environments_without_a_picture_show_their_observation():
    config = EnvironmentConfig(num_environments=2)
    environment = make_environment("Catch-v0", config, seed=2, renderable=True)
    assert isinstance(environment, PoolEnvironment)
    with pytest.raises(GorilaError, match="render before reset"):
        environment.render()
    observation = environment.reset().observation[0]
    picture = environment.render()
    assert picture.ndim == 3
    side = picture.shape[0] // 10
    assert picture.shape == (10 * side, 5 * side, 3)
    np.testing.assert_array_equal(picture[side // 2 :: side, side // 2 :: side, 1], observation * 255)
    environment.close()


_ACTOR = """
import sys
import numpy as np
from gorila_jax.config import EnvironmentConfig
from gorila_jax.environments import make_environment
environment = make_environment("Pong-v5", EnvironmentConfig(num_environments=4), seed=int(sys.argv[1]))
environment.reset()
for _ in range(250):
    environment.step(np.zeros(4, np.int32))
environment.close()
"""


@pytest.mark.slow
def test_four_processes_with_a_pool_each():
    actors = [
        subprocess.Popen([sys.executable, "-c", _ACTOR, str(k)], env={"PYTHONPATH": ":".join(sys.path)})
        for k in range(4)
    ]
    try:
        assert [actor.wait(timeout=120) for actor in actors] == [0, 0, 0, 0]
    finally:
        for actor in actors:
            actor.kill()
