"""What every replay does, whichever backend stands behind it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gorila_jax.replay.limiter import smallest_error_buffer
from gorila_jax.types import ReplayError, Step
from tests.replay.steps import check_states, draws, rows, step, table, write, write_with_states


def test_a_batch_has_the_shapes_and_dtypes_of_the_signature(open_replay):
    replay = open_replay(table((4, 2), window=3))
    writer = replay.writer(0, 1)
    write(writer, range(5), window=3, shape=(4, 2))
    steps, state, info = replay.sampler(0, 6).sample(10.0)
    assert [(x.shape, x.dtype.name) for x in steps] == [
        ((6, 3, 4, 2), "uint8"),
        ((6, 3), "int32"),
        ((6, 3), "float32"),
        ((6, 3), "float32"),
        ((6, 3), "bool"),
    ]
    assert [(x.shape, x.dtype.name) for x in info] == [((6,), "uint64"), ((6,), "float64"), ((6,), "int64")]
    assert (state.shape, state.dtype.name) == ((6, 0), "float16")
    assert (info.table_sizes == 3).all()
    assert writer.inserted_items == 3


def test_an_item_is_the_last_rows_of_its_stream(open_replay):
    replay = open_replay(table(window=3))
    writer = replay.writer(0, 2)
    for number in range(8):  # two streams in turn: 0 2 4 6 and 1 3 5 7
        writer.append(number % 2, step(number))
    writer.insert(0, 1.0)
    writer.insert(1, 1.0)
    assert writer.ready(10.0)
    steps, _ = draws(replay.sampler(0, 16), 4)
    assert {tuple(actions) for actions in steps.action} == {(2, 4, 6), (3, 5, 7)}
    for name in Step._fields:
        expected = [[getattr(step(number), name) for number in row] for row in steps.action]
        np.testing.assert_array_equal(getattr(steps, name), expected)


def test_a_state_stays_with_its_item(open_replay):
    streams = 40  # more than share a writer of Reverb's
    replay = open_replay(table(capacity=1_000, state_size=3))
    write_with_states(replay.writer(0, streams), streams, range(30))
    sampler = replay.sampler(0, 32)
    batches = [sampler.sample(10.0) for _ in range(10)]
    for batch in batches:
        check_states(batch)
    seen = {(number, stream) for batch in batches for number, stream in batch.state[:, :2].tolist()}
    assert len(seen) > 200


@pytest.mark.parametrize(
    "state",
    [
        np.zeros(2, np.float16),
        np.zeros((1, 3), np.float16),
        np.zeros(3, np.float32),
        np.zeros(3),
        np.zeros(0, np.float16),
    ],
)
def test_a_state_of_another_size_or_type_is_refused(open_replay, state):
    writer = open_replay(table(state_size=3)).writer(0, 1)
    for number in range(2):
        writer.append(0, step(number))
    with pytest.raises(ReplayError, match=r"float16 \(3,\)"):
        writer.insert(0, 1.0, state)
    assert writer.inserted_items == 0


def test_many_short_episodes_beside_a_long_one(open_replay):
    """Items of a stream that goes on are whole, however many rows the other streams add meanwhile."""
    window, streams = 4, 6
    replay = open_replay(table(window=window, capacity=1_000))
    writer = replay.writer(0, streams)
    for number in range(200):
        writer.append(0, step(number))
        for stream in range(1, streams):
            for _ in range(window):
                writer.append(stream, step(0))
            writer.insert(stream, 1.0)
            writer.end_episode(stream)
        if number >= window - 1:
            writer.insert(0, 1.0)
    assert writer.ready(10.0)
    assert replay.status(0).inserted_items == (200 - window + 1) + 200 * (streams - 1)
    actions = replay.sampler(0, 500).sample(10.0).steps.action
    long = actions[actions[:, -1] > 0]
    assert len(long) > 20
    np.testing.assert_array_equal(long, long[:, :1] + np.arange(window))


def test_items_whose_oldest_row_is_about_to_be_let_go(open_replay):
    """Its window is as old as rows may get, about: Reverb forgets a row while the item is being written."""
    for rows_between in (5, 6, 7):
        replay = open_replay(table(window=3, capacity=10_000), run_id=f"{rows_between} rows between")
        writer = replay.writer(0, 2)
        for number in range(1_500):
            writer.append(0, step(number))
            for _ in range(rows_between):
                writer.append(1, step(0))
            if number >= 2:
                writer.insert(0, 1.0)
        assert writer.ready(10.0)
        assert replay.status(0).inserted_items == 1_498
        actions = replay.sampler(0, 200).sample(10.0).steps.action
        np.testing.assert_array_equal(actions, actions[:, :1] + np.arange(3))


def test_rows_are_copied(open_replay):
    replay = open_replay(table())
    writer = replay.writer(0, 1)
    buffer = np.zeros(6, np.uint8)
    for number in range(100):
        buffer[:] = number
        writer.append(0, step(number)._replace(observation=buffer[::2]))
        if number:
            writer.insert(0, 1.0)
    buffer[:] = 255
    assert writer.ready(10.0)
    steps, _ = draws(replay.sampler(0, 50), 4)
    np.testing.assert_array_equal(steps.observation, np.repeat(steps.action[..., None], 3, axis=-1))


def test_rows_of_many_streams_at_once_go_to_their_own_whatever_their_order(open_replay):
    streams = 40  # more than share a writer of Reverb's
    replay = open_replay(table(capacity=1_000))
    writer = replay.writer(0, streams)
    order = np.random.default_rng(0).permutation(streams)
    for tick in (0, 100):
        of_all = rows(range(tick, tick + streams))
        for some in (order[:7], order[:0], order[7:]):
            writer.append_each(some.tolist(), Step(*(field[some] for field in of_all)))
    for stream in range(streams):
        writer.insert(stream, 1.0)
    assert writer.ready(10.0)
    steps, _ = draws(replay.sampler(0, 100), 10)
    assert {tuple(actions) for actions in steps.action} == {(s, 100 + s) for s in range(streams)}
    for name in Step._fields:
        expected = [[getattr(step(number), name) for number in row] for row in steps.action]
        np.testing.assert_array_equal(getattr(steps, name), expected)
    with pytest.raises(ReplayError, match=r"'observation' came as \(2, 3\) for 3 streams"):
        writer.append_each([0, 1, 2], rows([0, 1]))


def test_no_item_reaches_over_a_cut(open_replay):
    replay = open_replay(table(window=3))
    writer = replay.writer(0, 1)
    for number in range(5):
        writer.append(0, step(number))
    writer.end_episode(0)
    for number in (5, 6):
        writer.append(0, step(number))
        with pytest.raises(ReplayError, match="needs 3 rows, but stream 0 has"):
            writer.insert(0, 1.0)
    writer.append(0, step(7))
    writer.insert(0, 1.0)
    assert writer.ready(10.0)
    assert replay.status(0).size_items == writer.inserted_items == 1
    assert replay.sampler(0, 1).sample(10.0).steps.action.tolist() == [[5, 6, 7]]


@pytest.mark.parametrize(
    ("field", "value", "came", "held"),
    [
        ("observation", np.zeros((4,), np.uint8), "uint8 (4,)", "uint8 (3,)"),
        ("reward", np.float64(1), "float64 ()", "float32 ()"),
        ("action", np.zeros((1,), np.int32), "int32 (1,)", "int32 ()"),
    ],
)
def test_a_step_that_does_not_fit_is_named(open_replay, field, value, came, held):
    writer = open_replay(table()).writer(0, 1)
    with pytest.raises(ReplayError) as error:
        writer.append(0, step(0)._replace(**{field: value}))
    for part in (repr(field), came, held):
        assert part in str(error.value)


def test_the_oldest_item_leaves_a_full_table(open_replay):
    replay = open_replay(table(capacity=5))
    write(replay.writer(0, 1), range(13))
    status = replay.status(0)
    assert (status.size_items, status.capacity_items, status.inserted_items) == (5, 5, 12)
    steps, _ = draws(replay.sampler(0, 50), 4)
    assert set(steps.action[:, 0]) == {7, 8, 9, 10, 11}


def test_uniform_draws_ignore_priorities(open_replay):
    replay = open_replay(table())
    writer = replay.writer(0, 1)
    for priority, number in enumerate(range(0, 10, 2)):
        write(writer, [number, number + 1], priority=10.0**priority)
        writer.end_episode(0)
    steps, (_, probabilities, _) = draws(replay.sampler(0, 1000), 10)
    counts = np.bincount(steps.action[:, 0], minlength=10)[::2]
    np.testing.assert_allclose(counts / counts.sum(), 1 / 5, atol=0.03)
    np.testing.assert_allclose(probabilities, 1 / 5)


def test_proportional_draws_follow_priorities_and_their_updates(open_replay):
    replay = open_replay(table(exponent=0.6))
    writer = replay.writer(0, 1)
    for priority in (0.0, 1.0, 2.0, 5.0):
        write(writer, [2 * int(priority), 0], priority)
        writer.end_episode(0)
    weights = {0: 0.0, 2: 1**0.6, 4: 2**0.6, 10: 5**0.6}
    sampler = replay.sampler(0, 1000)
    steps, (keys, probabilities, _) = draws(sampler, 10)
    first = steps.action[:, 0]
    for action, weight in weights.items():
        share = weight / sum(weights.values())
        assert np.mean(first == action) == pytest.approx(share, abs=0.03)
        np.testing.assert_allclose(probabilities[first == action], share, rtol=1e-4)
    key = keys[first == 2][0]
    assert sampler.update_priorities(np.array([key]), np.array([100.0])) == 0
    _, (fresh, _, _) = draws(replay.sampler(0, 1000), 10)  # a sampler that has fetched nothing ahead
    share = 100**0.6 / (100**0.6 + 2**0.6 + 5**0.6)
    assert np.mean(fresh == key) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("by_another", [False, True])  # as after a stand-in has taken over
def test_updates_of_items_that_left_are_counted_and_change_nothing(open_replay, by_another):
    replay = open_replay(table(capacity=5, exponent=1.0))
    writer = replay.writer(0, 1)
    write(writer, range(6))
    sampler, another = replay.sampler(0, 8), replay.sampler(0, 8)
    keys = sampler.sample(10.0).info.keys
    write(writer, range(10, 20))
    updated = another if by_another else sampler
    assert updated.update_priorities(keys, np.full(8, 1e6)) == 8
    info = replay.sampler(0, 50).sample(10.0).info
    np.testing.assert_allclose(info.probabilities, 1 / 5)
    assert not set(info.keys) & set(keys)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
def test_an_unusable_priority_changes_nothing(open_replay, bad):
    replay = open_replay(table(exponent=1.0))
    writer = replay.writer(0, 1)
    write(writer, range(3))
    sampler = replay.sampler(0, 4)
    keys = sampler.sample(10.0).info.keys
    with pytest.raises(ValueError, match="1 of 4 priorities"):
        sampler.update_priorities(keys, np.array([5.0, 5.0, bad, 5.0]))
    with pytest.raises(ValueError, match="priority"):
        writer.insert(0, bad)
    np.testing.assert_allclose(replay.sampler(0, 4).sample(10.0).info.probabilities, 1 / 2)
    assert replay.status(0).inserted_items == 2


def test_a_sample_without_items_is_none_and_the_next_ones_go_on(open_replay):
    replay = open_replay(table(min_items=3))
    writer, sampler = replay.writer(0, 1), replay.sampler(0, 4)
    write(writer, range(3))
    # Longer than any timeout inside: an ended data set must not pass for the end of training.
    assert sampler.sample(2.5) is None
    assert not replay.status(0).can_sample
    write(writer, range(2))
    assert sampler.sample(10.0).info.keys.shape == (4,)


def test_the_limiter_holds_inserts_back_until_samples_allow_them(open_replay):
    # Error within 4 * 2 +- 8 samples: 8 items may enter before the first sample.
    replay = open_replay(table(min_items=4, per_insert=2.0, buffer=8.0))
    writer, sampler = replay.writer(0, 1), replay.sampler(0, 4)
    write(writer, range(9))
    assert not replay.status(0).can_insert
    writer.append(0, step(9))
    writer.insert(0, 1.0)
    assert not writer.ready(0.1)
    assert replay.status(0).inserted_items == 8
    assert sampler.sample(10.0) is not None
    assert writer.ready(10.0)
    assert replay.status(0).inserted_items == 9


@pytest.mark.parametrize("per_insert", [1.0, 8.0])
def test_the_smallest_error_buffer_never_stops_both_sides(open_replay, per_insert):
    inserts_at_once, batch, updates = 4, 32, 300
    buffer = smallest_error_buffer(per_insert, batch, inserts_at_once=inserts_at_once)
    replay = open_replay(table(capacity=200, min_items=32, per_insert=per_insert, buffer=buffer))
    writer, sampler = replay.writer(0, inserts_at_once), replay.sampler(0, batch)
    for stream in range(inserts_at_once):
        writer.append(stream, step(stream))
    trained = stuck = 0
    while trained < updates:
        stuck += 1
        if writer.ready(0.01):
            stuck = 0
            for stream in range(inserts_at_once):
                writer.append(stream, step(stream))
                writer.insert(stream, 1.0)
        if sampler.sample(0.05 if stuck else 0.0) is not None:
            stuck = 0
            trained += 1
        assert stuck < 300, replay.status(0)
    # Samples handed out, not the replay's own count, which holds what was fetched ahead.
    expected = (writer.inserted_items - 32) * per_insert
    assert abs(trained * batch - expected) <= 2 * buffer + 2 * batch + inserts_at_once * per_insert


def test_tables_are_apart(open_replay):
    replay = open_replay(table(), num_tables=2)
    write(replay.writer(0, 1), range(3))
    write(replay.writer(1, 1), range(10, 12))
    assert [replay.status(number).size_items for number in (0, 1)] == [2, 1]
    assert (replay.sampler(1, 4).sample(10.0).steps.action == [10, 11]).all()


def test_closing_wakes_a_waiting_sampler(open_replay):
    replay = open_replay(table())
    sampler = replay.sampler(0, 4)
    waiting, results = threading.Event(), []

    def wait():
        waiting.set()
        results.append(sampler.sample(60.0))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(10.0)
    replay.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert not results or results == [None]
    with pytest.raises(ReplayError, match="closed"):
        sampler.sample(0.0)
