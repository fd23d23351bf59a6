"""A replay that is spread over two servers, or two tables of the in-process one."""

from __future__ import annotations

import numpy as np
import pytest

from gorila_jax.replay import make_replay, spread_sampler
from gorila_jax.replay.spread import SpreadSampler
from gorila_jax.types import Batch, ConfigError, ReplayError, SampleInfo, Step
from tests.replay.steps import step, table, write

SHARED = {"num_tables": 2, "num_servers": 2}


def write_items(writer, priorities, first=0):
    """An item of one episode per priority; their first actions count up from `first`."""
    for number, priority in enumerate(priorities, first):
        write(writer, [number, number], priority)
        writer.end_episode(0)


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_every_table_gives_its_share_however_many_items_it_holds(open_replay, exponent):
    replay = open_replay(table(exponent=exponent), **SHARED)
    priorities = ([1.0, 2.0, 5.0, 3.0], [4.0, 1.0])
    write_items(replay.writer(0, 1), priorities[0])
    write_items(replay.writer(1, 1), priorities[1], first=4)
    sampler = spread_sampler(replay, [0, 1], 1000)
    drawn = [sampler.sample(10.0) for _ in range(40)]
    first = np.concatenate([batch.steps.action[:, 0] for batch in drawn])
    probabilities = np.concatenate([batch.info.probabilities for batch in drawn])
    weights = [np.array(of_table) ** exponent for of_table in priorities]
    shares = np.concatenate([of_table / of_table.sum() / 2 for of_table in weights])
    for action, share in enumerate(shares):
        assert np.mean(first == action) == pytest.approx(share, abs=0.01)
        np.testing.assert_allclose(probabilities[first == action], share, rtol=1e-4)
    for batch in drawn:
        assert (batch.info.table_sizes == 4 + 2).all()
        assert (batch.steps.action[:500, 0] < 4).all()
        assert (batch.steps.action[500:, 0] >= 4).all()


def test_a_joined_batch_has_the_shapes_and_dtypes_of_any_other(open_replay):
    replay = open_replay(table((4, 2), window=3), **SHARED)
    for number in (0, 1):
        write(replay.writer(number, 1), range(5), window=3, shape=(4, 2))
    joined = spread_sampler(replay, [0, 1], 6).sample(10.0)
    plain = spread_sampler(replay, [1], 6).sample(10.0)
    for left, right in zip(joined.steps + joined.info[1:], plain.steps + plain.info[1:], strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
    assert joined.info.keys.shape == plain.info.keys.shape == (6,)


def test_a_batch_that_tables_cannot_share_is_refused(open_replay):
    with pytest.raises(ConfigError, match="a batch of 5 items cannot be shared equally by 2 tables"):
        spread_sampler(open_replay(table(), **SHARED), [0, 1], 5)


def test_new_priorities_reach_the_table_of_their_items(backend, open_replay):
    replay = open_replay(table(exponent=1.0), **SHARED)
    for number in (0, 1):
        write_items(replay.writer(number, 1), [1.0, 1.0], first=2 * number)
    sampler = spread_sampler(replay, [0, 1], 64)
    batch = sampler.sample(10.0)
    first, keys = batch.steps.action[:, 0], batch.info.keys
    if backend == "memory":
        assert set(keys["key"][first < 2]) == set(keys["key"][first >= 2]) == {0, 1}
    # Any subset in any order, with the filters that its keeper likes.
    chosen = np.array([keys[first == 3][0], keys[first == 0][0]])
    assert sampler.update_priorities(chosen, np.array([9.0, 3.0])) == 0
    for number, expected in [(0, {0: 3 / 4, 1: 1 / 4}), (1, {2: 1 / 10, 3: 9 / 10})]:
        fresh = replay.sampler(number, 256).sample(10.0)
        for action, probability in expected.items():
            drawn = fresh.info.probabilities[fresh.steps.action[:, 0] == action]
            np.testing.assert_allclose(drawn, probability, rtol=1e-4)


def test_items_that_left_are_counted_over_all_tables(open_replay):
    replay = open_replay(table(capacity=5, exponent=1.0), **SHARED)
    writers = [replay.writer(number, 1) for number in (0, 1)]
    for writer in writers:
        write(writer, range(6))
    sampler = spread_sampler(replay, [0, 1], 8)
    keys = sampler.sample(10.0).info.keys
    write(writers[1], range(10, 20))
    assert sampler.update_priorities(keys, np.full(8, 2.0)) == 4
    write(writers[0], range(10, 20))
    assert sampler.update_priorities(keys[::-1], np.full(8, 2.0)) == 8
    assert sampler.update_priorities(keys[:0], np.zeros(0)) == 0


def test_one_unusable_priority_changes_nothing_in_any_table(open_replay):
    replay = open_replay(table(exponent=1.0), **SHARED)
    for number in (0, 1):
        write(replay.writer(number, 1), range(3))
    sampler = spread_sampler(replay, [0, 1], 4)
    keys = sampler.sample(10.0).info.keys
    with pytest.raises(ValueError, match="1 of 4 priorities"):
        sampler.update_priorities(keys, np.array([5.0, 5.0, 5.0, np.nan]))
    for number in (0, 1):
        np.testing.assert_allclose(replay.sampler(number, 4).sample(10.0).info.probabilities, 1 / 2)


def test_what_one_table_gave_waits_for_the_others_and_is_never_lost(open_replay):
    # One sample per item and no slack: what a timeout threw away could never be made up for.
    replay = open_replay(table(min_items=1, per_insert=1.0, buffer=4.0), **SHARED)
    writers = [replay.writer(number, 1) for number in (0, 1)]
    sampler = spread_sampler(replay, [0, 1], 8)
    handed_out = 0
    for number in (0, 1, 1, 0):
        write(writers[number], range(5))
        writers[number].end_episode(0)
        while sampler.sample(1.2) is not None:  # beyond the timeouts inside
            handed_out += 4
    assert handed_out == 8
    for number in (0, 1):
        assert 0 <= replay.status(number).sampled_items - handed_out < 4


def test_a_spread_replay_comes_back(open_replay, tmp_path):
    old = open_replay(table(capacity=20, exponent=0.5), **SHARED)
    for number in (0, 1):
        write_items(old.writer(number, 1), range(1, 4 + number), first=10 * number)
    old.save(str(tmp_path / "saved"))
    new = open_replay(table(capacity=20, exponent=0.5), run_id="later", **SHARED)
    new.restore(str(tmp_path / "saved"))
    assert [new.status(number).size_items for number in (0, 1)] == [3, 4]
    batch = spread_sampler(new, [0, 1], 128).sample(10.0)
    assert set(batch.steps.action[:64, 0]) == {0, 1, 2}
    assert set(batch.steps.action[64:, 0]) == {10, 11, 12, 13}
    write_items(new.writer(1, 1), [1.0], first=30)
    assert new.status(1).inserted_items == 5


def test_the_seed_decides_every_draw_in_memory():
    def run(seed):
        replay = make_replay("memory", table(exponent=0.7), 2, seed=seed)
        writers = [replay.writer(number, 1) for number in (0, 1)]
        sampler = spread_sampler(replay, [0, 1], 8)
        keys = []
        for number in range(10):
            write(writers[number % 2], range(number, number + 4), priority=1.0 + number)
            if (batch := sampler.sample(0.0)) is not None:
                keys.append(batch.info.keys)
                sampler.update_priorities(keys[-1], batch.steps.reward[:, 0] + 0.5)
        assert len(keys) == 9
        return np.array(keys)

    assert (run(1) == run(1)).all()
    assert (run(1) != run(2)).any()


class Part:
    """A sampler of one item a batch that gives, or raises, what it was told next; None without."""

    def __init__(self, log, name):
        self.log, self.name, self.told, self.closed = log, name, [], False

    def sample(self, timeout_s):
        self.log.append((self.name, timeout_s))
        answer = self.told.pop(0) if self.told else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed = True


def batch_of(number):
    steps = Step(*(np.array([[value]]) for value in step(number)))
    state = np.full((1, 2), number, np.float16)
    return Batch(steps, state, SampleInfo(np.array([7], np.uint64), np.array([0.5]), np.array([10 + number])))


def test_all_tables_draw_before_any_is_waited_for():
    log = []
    first, second = Part(log, "first"), Part(log, "second")
    sampler = SpreadSampler([first, second])
    assert sampler.sample(5.0) is None
    assert log == [("first", 0.0), ("second", 0.0), ("first", 2.5), ("second", 2.5)]

    log.clear()
    second.told = [batch_of(2)]
    assert sampler.sample(0.0) is None
    assert log == [("first", 0.0), ("second", 0.0), ("first", 0.0)]

    log.clear()
    first.told = [ReplayError("dead"), None, batch_of(1)]
    with pytest.raises(ReplayError, match="dead"):
        sampler.sample(5.0)
    batch = sampler.sample(5.0)
    assert {name for name, _ in log} == {"first"}
    assert batch.steps.action.tolist() == [[1], [2]]
    assert batch.state.tolist() == [[1, 1], [2, 2]]
    assert batch.info.keys.tolist() == [(0, 7), (1, 7)]
    assert batch.info.probabilities.tolist() == [0.25, 0.25]
    assert batch.info.table_sizes.tolist() == [23, 23]
    sampler.close()
    assert first.closed
    assert second.closed
