"""The benchmark of replay compares everything that is installed, and says what is not."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from benchmarks import replay
from benchmarks import replay_contenders as contenders
from tests.benchmarks.in_process import run_benchmark

SMALLEST = ("--capacity_items=1000", "--batch_sizes=4,8", "--rounds=1", "--seconds=0.01")


@pytest.mark.reverb
@pytest.mark.parametrize(("items", "new_rows", "rows"), [("transitions", 1, 7), ("sequences", 20, 38)])
def test_our_writer_and_sampler_beside_the_bare_client(capsys, tmp_path, items, new_rows, rows):
    pytest.importorskip("reverb", reason="Reverb is not installed")
    record, _ = run_benchmark(replay, capsys, tmp_path, f"--items={items}", *SMALLEST)
    ratios, figures = record["ratios"], record["figures"]
    assert {
        "writer_of_bare_client",
        "sampler_of_bare_client",
        "writer_of_five_columns",
        "sampler_of_two_servers_of_one",
    } <= set(ratios)
    for figure, moved in ("inserts_per_second", new_rows), ("samples_per_second_batch_8", rows):
        figure = figures[f"reverb_{figure}"]
        assert figure["megabytes_per_second"] == pytest.approx(figure["median"] * moved * 7069e-6)
    assert ratios["sampler_of_bare_client"] == min(
        ratios["sampler_of_bare_client_batch_4"], ratios["sampler_of_bare_client_batch_8"]
    )


def test_the_in_process_replay_alone(monkeypatch, capsys, tmp_path):
    """With a stand-in for another buffer, so that there is a ratio."""
    monkeypatch.setattr(contenders, "reverb_available", lambda: False)
    monkeypatch.setattr(contenders, "installed", lambda peer: peer == "cpprb")
    monkeypatch.setattr(contenders, "cpprb_contender", _memory_as_cpprb)
    monkeypatch.setattr(replay.importlib.metadata, "version", lambda peer: "1.0")
    record, table = run_benchmark(replay, capsys, tmp_path, *SMALLEST)
    ratios = {name for name in record["ratios"] if not name.endswith("_in_processor_time")}
    assert ratios == {
        "memory_of_cpprb",
        "memory_inserts_of_cpprb",
        "memory_samples_of_cpprb_batch_4",
        "memory_samples_of_cpprb_batch_8",
    }
    assert record["figures"]["settings"]["peers"] == {"cpprb": "1.0", "flashbax": None}
    assert table.count("not installed") == 2
    assert "memory_samples_of_cpprb_batch_8_in_processor_time" in record["ratios"]
    inserts = record["figures"]["memory_inserts_per_second"]
    assert inserts["processor_us"] > 0
    assert inserts["megabytes_per_second"] == pytest.approx(inserts["median"] * 7069e-6)
    samples = record["figures"]["memory_samples_per_second_batch_8"]
    assert samples["megabytes_per_second"] == pytest.approx(samples["median"] * 7 * 7069e-6)


def _memory_as_cpprb(work):
    with contextlib.ExitStack() as stack:
        memory = contenders.make_replay("memory", work.table, 1)
        contender = contenders.our_contender("cpprb", memory, work, stack)
        stack.pop_all()
    return contender


@pytest.mark.parametrize("peer", contenders.PEERS)
def test_windows_of_a_peer_are_successive_rows_of_one_stream(peer):
    pytest.importorskip(peer, reason=f"{peer} is not installed")
    ticks = contenders.make_ticks()
    make = {"cpprb": contenders.cpprb_contender, "flashbax": contenders.flashbax_contender}[peer]
    table = contenders.make_table_spec(replay.KINDS["transitions"].layout, 1000)
    contender = make(contenders.Workload(table, 1, ticks, [4]))
    contenders.fill(contender, table)
    sample = contender.samplers[4]()
    if peer == "cpprb":
        successive = [picture for tick in ticks for picture in tick.observation]
        windows = np.moveaxis(sample["observation"], -1, 1)
    else:
        successive = [tick.observation[stream] for stream in range(contenders.STREAMS) for tick in ticks]
        windows = np.asarray(sample.experience.observation)
    assert windows.shape == (4, 7, 84, 84)
    places = {picture.tobytes(): place for place, picture in enumerate(successive)}
    for window in windows:
        steps = np.diff([places[picture.tobytes()] for picture in window])
        assert set(steps.tolist()) <= {
            1,
            1 - len(successive),
            1 - contenders.TICKS,
        }  # or where rows come again
