from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.gateway.workers.running import wait_until

from tidelog_gateway.worker_channel import frames
from tidelog_gateway.workers import worker_process
from tidelog_gateway.workers.worker_process import WorkerProcess, describe_end, lifeline_pipe

ECHO = """
import os, sys, time
control = int(sys.argv[2])
os.write(control, os.read(control, 1 << 16))
time.sleep(60)
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Start a process that sends back its first frame, and then neither reads nor ends."""
    directory = tmp_path_factory.mktemp("module")
    (directory / "echoing.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setattr(worker_process, "MODULE", "echoing")
    lifeline, life = lifeline_pipe()
    found = WorkerProcess(1, [], lifeline)
    yield found
    found.kill()
    wait_until(lambda: found.ended() is not None)
    found.close()
    os.close(lifeline)
    os.close(life)


def test_frames_are_exchanged_and_an_end_is_detected(worker: WorkerProcess) -> None:
    assert (worker.is_serving, worker.ended()) == (False, None)
    worker.send(frames.BEGIN, b"x" * 1000)
    heard: list[tuple[bytes, bytes]] = []

    def has_heard() -> bool:
        heard.extend(worker.received())
        return bool(heard)

    wait_until(has_heard)
    assert heard == [(frames.BEGIN, b"x" * 1000)]
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.ended() == -signal.SIGTERM)
    worker.signal(signal.SIGTERM)  # the process ignores it
    worker.send(frames.COLLECT)
    assert worker.unsent_bytes == 0


def test_a_worker_that_does_not_read_costs_neither_time_nor_memory(worker: WorkerProcess) -> None:
    worker.send(frames.BEGIN, b"x")
    payload = b"x" * (1 << 20)
    began = time.monotonic()
    for _ in range(100):
        worker.send(frames.SAMPLE, payload)
    assert time.monotonic() - began < 5
    assert frames.UNSENT_BYTES_MAX <= worker.unsent_bytes <= frames.UNSENT_BYTES_MAX + 2 * len(payload)


def test_ends_of_processes_are_described() -> None:
    assert [describe_end(code) for code in (0, 2, -9, -200)] == [
        "ended with code 0",
        "ended with code 2",
        "was ended by SIGKILL",
        "was ended by signal 200",
    ]
