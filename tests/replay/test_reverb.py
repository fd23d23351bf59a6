"""What can happen to servers: they die, come back empty, share a port or belong to somebody else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("reverb", reason="Reverb is not installed")

from gorila_jax.replay import make_replay
from gorila_jax.replay.reverb import ReplayServer, ReverbReplay
from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.reverb.tables import TableName
from gorila_jax.types import ConfigError, ReplayError, Step
from tests.replay.steps import rows, step, table, write

pytestmark = pytest.mark.reverb

SPEC = table(capacity=50, exponent=0.6)
LIMIT_S = 60.0


@pytest.fixture
def start_server():
    """Servers in this process, stopped after the test."""
    servers = []

    def start(*args, **kwargs):
        servers.append(ReplayServer(*args, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def run_python():
    """Runs a program in a fresh process, killed after the test if it still lives."""
    processes = []

    def run(code, stderr=None, **environment):
        processes.append(
            subprocess.Popen(
                [sys.executable, "-u", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
            )
        )
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


def line_of(process):
    """The next line that a process prints; fails when it ends or says nothing for a minute."""
    assert select.select([process.stdout], [], [], LIMIT_S)[0], "the process says nothing"
    line = process.stdout.readline()
    assert line, "the process has ended"
    return line.strip()


def error_within(call, seconds=20.0):
    """Repeats a port call as a worker does until it raises ReplayError, and returns the message."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            call()
        except ReplayError as error:
            return str(error)
    raise AssertionError(f"no error within {seconds} s")


SERVE = """
from gorila_jax.replay.reverb import ReplayServer
from tests.replay.steps import table
server = ReplayServer(table(capacity=50, exponent=0.6), 1, "run")
print(server.port)
server.wait()
"""


def test_a_killed_server_is_reported_by_every_port_and_an_empty_one_is_not_taken_for_it(
    run_python, start_server
):
    process = run_python(SERVE)
    port = int(line_of(process))
    address = f"localhost:{port}"
    impatient = ReverbReplay(SPEC, 1, "run", [address], silence_timeout_s=2.0, watch_period_s=0.1)
    patient = ReverbReplay(SPEC, 1, "run", [address], silence_timeout_s=120.0, watch_period_s=0.1)
    writer, sampler = impatient.writer(0, 1), impatient.sampler(0, 4)
    write(writer, range(5))
    keys = sampler.sample(10.0).info.keys
    other_writer, other_sampler = patient.writer(0, 1), patient.sampler(0, 4)
    write(other_writer, range(5))
    assert patient.status(0).size_items == 8

    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    writer.append(0, step(5))
    writer.insert(0, 1.0)

    def wait_for_room():
        assert not writer.ready(0.2)

    for call in (
        wait_for_room,
        lambda: sampler.sample(0.2),
        lambda: sampler.update_priorities(keys, np.ones(4)),
        lambda: impatient.status(0),
        lambda: writer.append(0, step(6)),
    ):
        assert f"no replay server answers at {address}" in error_within(call)
    begin = time.monotonic()
    impatient.close()
    assert time.monotonic() - begin < 10.0

    start_server(SPEC, 1, "run", port)
    for call in (
        lambda: other_sampler.sample(0.2),
        lambda: other_writer.ready(0.2),
        lambda: patient.status(0),
    ):
        assert "was restarted and lost all its items" in error_within(call)
    patient.close()


def test_a_server_of_another_run_is_refused(start_server):
    server = start_server(SPEC, 1, "theirs")
    with pytest.raises(ReplayError, match=rf"{server.address} belongs to theirs, not to this run, ours"):
        ReverbReplay(SPEC, 1, "ours", [server.address])
    assert server.connection.info(0, 10.0).current_size == 0


def test_a_server_with_other_settings_is_refused(start_server):
    server = start_server(SPEC, 1, "run")
    for other, difference in [
        (SPEC._replace(capacity_items=60), "capacity: 50 there, 60 here"),
        (SPEC._replace(priority_exponent=0.0), "priority exponent: 0.6 there, 0.0 here"),
        (SPEC._replace(samples_per_insert=1.0, error_buffer=9.0), "least error"),
        (SPEC._replace(window_steps=3), "signature"),
    ]:
        with pytest.raises(ConfigError, match=difference):
            ReverbReplay(other, 1, "run", [server.address])


def test_a_taken_port_is_refused(start_server):
    port = start_server(SPEC, 1, "first").port
    with pytest.raises(ReplayError, match=f"port {port} is taken"):
        make_replay("reverb", SPEC, 1, run_id="second", port=port)


def test_a_wrong_address_is_named():
    with pytest.raises(ReplayError, match="no replay server answers at localhost:1 "):
        ReverbReplay(SPEC, 1, "run", ["localhost:1"], connect_timeout_s=2.0)


def test_tables_spread_over_servers(start_server):
    servers = [start_server(SPEC, 3, "run", index=index, num_servers=2) for index in range(2)]
    addresses = [server.address for server in servers]
    replay = ReverbReplay(SPEC, 3, "run", addresses)
    for number in range(3):
        write(replay.writer(number, 1), range(10 * number, 10 * number + 2))
    for number in range(3):
        actions = replay.sampler(number, 4).sample(10.0).steps.action
        assert (actions == [10 * number, 10 * number + 1]).all()
    assert [server.connection.info(i, 10.0).current_size for i, server in enumerate(servers)] == [1, 1]
    replay.close()
    with pytest.raises(ReplayError, match="are the addresses in order"):
        ReverbReplay(SPEC, 3, "run", addresses[::-1])
    with pytest.raises(ConfigError, match="each needs a table of its own"):
        ReverbReplay(SPEC, 1, "run", addresses)
    with pytest.raises(ConfigError, match="no replay server 2: the 2 are numbered from 0"):
        ReplayServer(SPEC, 3, "run", index=2, num_servers=2)


def free_ports_in_a_row():
    """A port that is free, as is the next one."""
    for port in range(20000, 60000, 2):
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("", port))
                second.bind(("", port + 1))
            except OSError:
                continue
        return port
    raise AssertionError("no two ports in a row are free")


def test_several_servers_in_this_process_have_ports_in_a_row():
    port = free_ports_in_a_row()
    replay = make_replay("reverb", SPEC, 2, run_id="run", port=port, num_servers=2)
    assert replay.addresses == (f"localhost:{port}", f"localhost:{port + 1}")
    replay.close()


def test_where_one_of_several_servers_cannot_start_none_is_left(start_server):
    port = free_ports_in_a_row()
    start_server(SPEC, 1, "theirs", port + 1)
    with pytest.raises(ReplayError, match=f"port {port + 1} is taken"):
        make_replay("reverb", SPEC, 2, run_id="run", port=port, num_servers=2)
    assert start_server(SPEC, 1, "run", port).port == port


def test_a_replay_comes_back_on_as_many_servers_only(tmp_path):
    replay = make_replay("reverb", SPEC, 2, run_id="run", num_servers=2)
    replay.save(str(tmp_path / "saved"))
    replay.close()
    other = make_replay("reverb", SPEC, 2, run_id="run")
    with pytest.raises(ReplayError, match="was saved from 2 servers, now there are 1"):
        other.restore(str(tmp_path / "saved"))
    other.close()


def test_what_is_fetched_ahead_is_bounded(start_server):
    replay = make_replay("reverb", SPEC, 1, run_id="run")
    write(replay.writer(0, 1), range(40))
    batch = 16
    sampler = replay.sampler(0, batch)
    for drawn in range(1, 21):
        assert sampler.sample(10.0) is not None
        assert replay.status(0).sampled_items - drawn * batch <= 3 * batch
    replay.close()


def test_a_starved_sampler_loses_no_item():
    # One sample per item and no slack: what a limiter's timeout threw away could never be made up for.
    spec = table(capacity=100, min_items=1, per_insert=1.0, buffer=4.0)
    replay = make_replay("reverb", spec, 1, run_id="run")
    writer, sampler = replay.writer(0, 1), replay.sampler(0, 4)
    write(writer, range(5))
    handed_out = 0
    for _ in range(2):
        while sampler.sample(1.5) is not None:  # beyond the limiter's timeout
            handed_out += 4
        write(writer, range(4))
        writer.end_episode(0)
    while sampler.sample(1.5) is not None:
        handed_out += 4
    assert replay.status(0).sampled_items - handed_out < 4
    replay.close()


CLIENT = """
from gorila_jax.replay.reverb import ReverbReplay
from tests.replay.steps import table, write
import tensorflow as tf

assert not tf.config.get_visible_devices("GPU")
replay = ReverbReplay(table(capacity=50, exponent=0.6), 1, "run", ["ADDRESS"])
write(replay.writer(0, 1), range(5))
assert replay.sampler(0, 4).sample(30.0) is not None
starved = ReverbReplay(table(min_items=9), 1, "own")
assert starved.sampler(0, 4).sample(0.5) is None
starved.close()
print("done")
"""


def test_a_client_in_another_process_ends_cleanly_despite_a_proxy(run_python, start_server):
    server = start_server(SPEC, 1, "run")
    nowhere = "http://127.0.0.1:9"
    process = run_python(
        CLIENT.replace("ADDRESS", server.address),
        http_proxy=nowhere,
        https_proxy=nowhere,
        no_proxy="example.org",
    )
    assert line_of(process) == "done"
    assert process.wait(LIMIT_S) == 0
    assert server.connection.info(0, 10.0).current_size == 4


def test_only_a_replay_without_clients_can_be_restored(tmp_path):
    replay = make_replay("reverb", SPEC, 1, run_id="run")
    write(replay.writer(0, 1), range(3))
    replay.save(str(tmp_path / "saved"))
    with pytest.raises(ReplayError, match="before any writer or sampler"):
        replay.restore(str(tmp_path / "saved"))
    replay.close()


def test_a_server_starts_with_saved_items(tmp_path, start_server):
    replay = make_replay("reverb", SPEC, 1, run_id="run")
    write(replay.writer(0, 1), range(3))
    replay.save(str(tmp_path / "saved"))
    replay.close()
    server = start_server(SPEC, 1, "later", restore_directory=str(tmp_path / "saved"))
    later = ReverbReplay(SPEC, 1, server.run_id, [server.address])
    assert later.status(0).size_items == 2
    with pytest.raises(ReplayError, match="start them with the saved replay"):
        later.restore(str(tmp_path / "saved"))
    later.close()


STUCK = """
import ctypes, reverb
from gorila_jax.replay.reverb import ReplayServer
from tests.replay.steps import table

# Waits as Reverb's loading does: without letting go of the interpreter.
reverb.Server = lambda *arguments: ctypes.PyDLL(None).sleep(1000)
ReplayServer(table(capacity=50, exponent=0.6), 1, "run", restore_directory="SAVED", restore_timeout_s=0.5)
"""


def test_loading_that_never_ends_ends_the_process(tmp_path, run_python):
    replay = make_replay("reverb", SPEC, 1, run_id="run")
    replay.save(str(tmp_path / "saved"))
    replay.close()
    process = run_python(STUCK.replace("SAVED", str(tmp_path / "saved")), stderr=subprocess.PIPE)
    assert process.wait(LIMIT_S) == 1
    errors = process.stderr.read()
    assert f"loading the replay saved in {tmp_path / 'saved'}" in errors
    assert "Timeout" in errors


def test_a_table_name_says_whose_it_is():
    name = TableName("my/run", "abc", 12)
    assert TableName.parse(str(name)) == name
    assert TableName.parse("somebody's table") is None
    assert TableName.parse("a/b/c") is None


def test_packed_rows_bring_back_every_field_bit_for_bit():
    for shape in ((3,), (20, 20)):
        signature = table(shape=shape).signature
        packing = Packing(signature)
        steps = rows(range(4), shape)._replace(reward=np.full(4, np.nan, np.float32))
        packed = packing.pack(steps)
        assert packed.shape == (4, packing.row_bytes)
        unpacked = packing.unpack(packed.reshape(2, 2, -1))
        for name, field, values in zip(Step._fields, signature, unpacked, strict=True):
            assert values.dtype == field.dtype
            assert values.shape == (2, 2, *field.shape)
            assert values.flags.c_contiguous
            assert values.tobytes() == getattr(steps, name).tobytes()


def test_many_items_at_once_are_sent_without_a_warning_for_each(capfd):
    with contextlib.closing(make_replay("reverb", table(), 1, run_id="many")) as replay:
        writer = replay.writer(0, 1)
        for number in range(300):
            writer.append(0, step(number))
            if number:
                writer.insert(0, 1.0)
        assert writer.ready(10.0)
        writer.close()
        assert replay.status(0).inserted_items == 299
    assert "pending items" not in capfd.readouterr().err
