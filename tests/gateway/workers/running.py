"""A gateway with workers as a process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.conftest import STOP_TIMEOUT_S

WAIT_S = 30


class Running:
    """A parent with its workers.

    Attributes:
        process: the parent.
        http: its address.
    """

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.http = f"http://127.0.0.1:{port}"

    def workers(self) -> list[int]:
        """Return the process ids of the workers by number."""
        return [pid for _, pid in sorted(numbered_children(self.process.pid))]

    def get(self, path: str) -> str:
        """Return the answer over a new connection; repeat a request that the gateway cannot answer in time.

        Raises:
            OSError, HTTPException: there is no answer.
        """
        until = time.monotonic() + WAIT_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
            with contextlib.closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read().decode()
            if answer.status != 503 or time.monotonic() > until:
                assert answer.status == 200, text
                return text
            time.sleep(0.1)

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        page = self.get("/metrics")
        families = text_string_to_metric_families(page)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def wait_for_workers(self, count: int) -> None:
        """Wait until this number of workers serve."""
        wait_until(lambda: self.metric("tidelog_gateway_workers") == count)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop with a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)


def numbered_children(parent: int) -> list[tuple[int, int]]:
    """Return the numbers and process ids of a parent's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError):
            words = path.read_text().split("\0")
            pid = int(path.parent.name)
            stat = (path.parent / "stat").read_text().rpartition(")")[2].split()
            if "tidelog_gateway.workers.worker" in words and int(stat[1]) == parent and stat[0] != "Z":
                found.append((int(words[words.index("tidelog_gateway.workers.worker") + 1]), pid))
    return found


def connections_read(port: int) -> int:
    """Return how many connections to a local port have been accepted, and everything that was sent on them read."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, _, _, _, _, inode = line.split()[:10]
        found += (int(local[-4:], 16), state, queues[-8:]) == (port, "01", "0" * 8) and inode != "0"
    return found


class WaitingReads:
    """Requests that wait for a record; the gateway has read all of them.

    Args:
        port: of the gateway.
        topic: its partition 0 is read.
        count: number of requests, each on a connection of its own.
    """

    def __init__(self, port: int, topic: str, count: int) -> None:
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=40) for _ in range(count)]
        for connection in self._connections:
            connection.request("GET", f"/v1/topics/{topic}/partitions/0/records?wait_ms=30000")
        wait_until(lambda: connections_read(port) >= count)

    def statuses(self) -> list[int]:
        """Return the status of each answer."""
        answers = []
        for connection in self._connections:
            answers.append(connection.getresponse().status)
            connection.close()
        return answers


def wait_until(holds: Callable[[], object], *, within_s: float = WAIT_S) -> None:
    """Wait until a condition holds; its exceptions count as false.

    Raises:
        AssertionError: the wait timed out.
    """
    until = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if holds():
                return
        assert time.monotonic() < until, "the wait timed out"
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    return state_of(pid) in {"Z", ""}


def state_of(pid: int) -> str:
    """Return the letter of a process's state, see proc(5); "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextlib.contextmanager
def gateway(*arguments: str, workers: int = 2, log: Path | None = None, **variables: str) -> Iterator[Running]:
    """Start a gateway with workers; end all of its processes at the end of the block."""
    command = [sys.executable, "-m", "tidelog_cli", "gateway", "--http-port", "0", "--workers", str(workers)]
    with contextlib.ExitStack() as stack:
        stderr = None if log is None else stack.enter_context(log.open("w"))
        process = stack.enter_context(
            subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ | variables
            )
        )
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, f"the gateway ended with {process.wait(WAIT_S)}"
        running = Running(process, json.loads(ready)["http_port"])
        try:
            yield running
        finally:
            left = running.workers()
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
