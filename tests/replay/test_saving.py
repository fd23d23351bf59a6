"""What a saved replay brings back, whichever backend stands behind it."""

from __future__ import annotations

import pytest

from gorila_jax.types import ReplayError
from tests.replay.steps import check_states, draws, table, write, write_with_states


def test_states_are_saved_and_restored_with_their_items(open_replay, tmp_path):
    replay = open_replay(table(state_size=3))
    write_with_states(replay.writer(0, 2), 2, range(20))
    replay.save(str(tmp_path / "saved"))
    other = open_replay(table(state_size=3))
    other.restore(str(tmp_path / "saved"))
    check_states(other.sampler(0, 32).sample(10.0))
    stateless = open_replay(table())
    with pytest.raises(ReplayError, match=r"state_dtype: float16 was saved, None(.|\n)*state_size"):
        stateless.restore(str(tmp_path / "saved"))


def payloads(replay, batches=20):
    """What a table holds, by drawing often: {first action: (probability, all bytes)}."""
    steps, (_, probabilities, _) = draws(replay.sampler(0, 50), batches)
    return {
        int(actions[0]): (probability, *(column[place].tobytes() for column in steps))
        for place, (actions, probability) in enumerate(zip(steps.action, probabilities, strict=True))
    }


def test_a_saved_replay_comes_back(open_replay, tmp_path):
    spec = table(capacity=20, exponent=0.5)
    old = open_replay(spec)
    writer = old.writer(0, 1)
    for number in range(30):  # more than fit, so that the oldest is not the first
        write(writer, [10 * number, 10 * number + 1], priority=1.0 + number)
        writer.end_episode(0)
    old.save(str(tmp_path / "saved"))
    new = open_replay(spec, run_id="later")
    new.restore(str(tmp_path / "saved"))
    assert new.status(0).size_items == 20
    assert new.status(0).inserted_items == 30
    before, after = payloads(old), payloads(new)
    assert before.keys() == after.keys() == {10 * number for number in range(10, 30)}
    for action in before:
        assert before[action][0] == pytest.approx(after[action][0])
        assert before[action][1:] == after[action][1:]
    # Life goes on: a new writer begins new episodes, and the oldest item leaves first.
    writer = new.writer(0, 1)
    write(writer, [5, 6], priority=50.0)
    assert payloads(new).keys() == {5, *(10 * number for number in range(11, 30))}


def test_an_empty_replay_can_be_saved(open_replay, tmp_path):
    open_replay(table()).save(str(tmp_path / "saved"))
    new = open_replay(table())
    new.restore(str(tmp_path / "saved"))
    assert new.status(0).size_items == 0


def test_a_directory_that_exists_is_not_written_to(open_replay, tmp_path):
    with pytest.raises(ReplayError, match="exists already"):
        open_replay(table()).save(str(tmp_path))


def test_other_settings_are_refused_with_both_values(open_replay, tmp_path):
    old = open_replay(table(capacity=5, exponent=0.6))
    write(old.writer(0, 1), range(4))
    old.save(str(tmp_path / "saved"))
    new = open_replay(table(shape=(4,), capacity=50, exponent=0.6))
    with pytest.raises(ReplayError) as error:
        new.restore(str(tmp_path / "saved"))
    assert "capacity_items: 5 was saved, 50 is set now" in str(error.value)
    assert "signature" in str(error.value)
    assert "exponent" not in str(error.value)


def test_nothing_saved_is_an_error(open_replay, tmp_path):
    with pytest.raises(ReplayError, match="no saved replay"):
        open_replay(table()).restore(str(tmp_path / "nothing"))


def test_a_damaged_save_is_an_error(open_replay, tmp_path):
    old = open_replay(table())
    write(old.writer(0, 1), range(4))
    old.save(str(tmp_path / "saved"))
    for file in (tmp_path / "saved").rglob("items.*"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ReplayError):
        open_replay(table()).restore(str(tmp_path / "saved"))
