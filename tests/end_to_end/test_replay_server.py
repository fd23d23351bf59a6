"""A trainer and its replay server in processes of their own."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

import pytest

from tests.end_to_end.programs import finish, run, start, wait_for

pytestmark = pytest.mark.reverb

SHARED = (
    "--environment=Catch-v0",
    "--replay_backend=reverb",
    "--config.replay.learning_starts_steps=100",
)


@pytest.fixture
def port() -> int:
    return free_port()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def serve(port: int, run_id: str = "mine"):
    (process,) = serve_all([port], run_id)
    return process


def serve_all(ports: Sequence[int], run_id: str = "mine", more: Sequence[str] = ()):
    """One server on each port, once all are ready."""
    processes = [
        start(
            "replay",
            *SHARED,
            *more,
            f"--index={index}",
            f"--config.replay.port={port}",
            f"--config.replay.run_id={run_id}",
        )
        for index, port in enumerate(ports)
    ]
    for process in processes:
        wait_for(lambda lines=process.stdout: "is ready on port" in lines.readline(), process)
    return processes


def train_flags(ports: Sequence[int], workdir, run_id: str = "mine") -> tuple[str, ...]:
    return (
        *SHARED,
        f"--config.replay.server_addresses={','.join(f'localhost:{port}' for port in ports)}",
        f"--config.replay.run_id={run_id}",
        f"--workdir={workdir}",
    )


def test_a_run_trains_through_servers_in_other_processes(tmp_path):
    ports = [free_port(), free_port()]
    spread = ("--num_actors=2", "--num_replay_servers=2")
    servers = serve_all(ports, more=spread)
    code, output = run("train", *train_flags(ports, tmp_path), *spread, "--total_frames=2000")
    assert code == 0, output
    assert "table 0 fed by actors 0; table 1 fed by actors 1" in output
    assert [finish(server, signal.SIGTERM)[0] for server in servers] == [0, 0]


def test_a_server_of_another_run_is_refused(tmp_path, port):
    server = serve(port, run_id="theirs")
    code, output = run("train", *train_flags([port], tmp_path), "--total_frames=2000")
    assert code == 1
    assert "theirs" in output
    assert finish(server, signal.SIGTERM)[0] == 0


def test_a_second_server_on_the_port_is_refused(port):
    server = serve(port)
    code, output = run("replay", *SHARED, f"--config.replay.port={port}", "--config.replay.run_id=other")
    assert code == 1
    assert f"port {port} is taken" in output
    assert finish(server, signal.SIGTERM)[0] == 0


def test_a_killed_server_ends_the_run_with_its_address(tmp_path, port):
    server = serve(port)
    process = start("train", *train_flags([port], tmp_path), "--total_frames=100000000")
    metrics = tmp_path / "metrics.csv"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1, process)
    server.kill()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output
    assert f"localhost:{port}" in output
