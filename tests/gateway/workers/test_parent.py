"""Real workers behind one port: they share it, are replaced, and end with their parent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.gateway.workers.running import WaitingReads, gateway, has_ended, state_of, wait_until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tidelog import Client
from tidelog_gateway.workers.parent import BACK_OFF_S

pytestmark = pytest.mark.e2e

NOBODY = ("--bootstrap", "127.0.0.1:1")
BODY = {"records": [{"value": "x"}]}


def test_both_workers_serve_one_port_with_one_set_of_metrics(node_address: str) -> None:
    with gateway("--bootstrap", node_address) as running:
        assert len(running.workers()) == 2
        assert httpx.get(f"{running.http}/readyz").json()["status"] == "ready"
        for _ in range(40):
            httpx.get(f"{running.http}/livez")  # each over a new connection
        page = httpx.get(f"{running.http}/metrics").text
        assert 'tidelog_gateway_requests_total{method="GET",route="/livez",status="200"} 40.0' in page.splitlines()
        assert page.count("# TYPE tidelog_gateway_requests_total counter") == 1
        assert running.metric("tidelog_gateway_workers") == 2
        for pid in running.workers():
            assert os.getpgid(pid) == pid, "Ctrl-C in a terminal reaches only the parent"
        started = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert running.metric("process_start_time_seconds") % 100_000 == pytest.approx(
            (int(started) / os.sysconf("SC_CLK_TCK") + _boot_s()) % 100_000, abs=0.02
        )
        assert running.stop() == 0
        assert running.process.stdout is not None
        assert running.process.stdout.read() == "", "only the parent prints a ready line"


def _boot_s() -> int:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))


def test_killed_workers_are_replaced_and_no_acknowledged_record_is_lost(node_address: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    acknowledged: list[set[str]] = [set() for _ in range(4)]
    refused: list[str] = []
    over = threading.Event()

    def publish(number: int, port: int, path: str) -> None:
        sent = 0
        while not over.is_set():
            value = f"{number}-{sent}"
            sent += 1
            body = json.dumps({"records": [{"value": value}]})
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                connection.connect()  # a new connection each; none may be refused
            except OSError as error:
                refused.append(repr(error))
                continue
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                if connection.getresponse().status == 200:
                    acknowledged[number].add(value)
            except (ConnectionError, http.client.HTTPException):
                continue  # the worker that had accepted it was killed
            finally:
                connection.close()

    with gateway("--bootstrap", node_address, log=log) as running:
        httpx.post(f"{running.http}/v1/topics", json={"name": "killed", "partitions": 2}).raise_for_status()
        where = (running.port, "/v1/topics/killed/records")
        threads = [threading.Thread(target=publish, args=(number, *where)) for number in range(4)]
        for thread in threads:
            thread.start()
        totals = []
        for _ in range(2):
            time.sleep(0.5)
            totals.append(running.metric("tidelog_gateway_requests_total"))
            os.kill(running.workers()[0], signal.SIGKILL)
            wait_until(lambda: json.loads(running.get("/readyz")).get("workers_away") == 1)
            totals.append(running.metric("tidelog_gateway_requests_total"))
            running.wait_for_workers(2)
        over.set()
        for thread in threads:
            thread.join()
        assert totals == sorted(totals), "counters do not fall when a worker is replaced"
        assert running.metric("tidelog_gateway_worker_restarts_total") == 2
        assert running.stop() == 0
    assert refused == []
    stored = asyncio.run(_values(node_address, "killed"))
    lost = [set_ - stored for set_ in acknowledged]
    assert (lost, sum(map(len, acknowledged)) > 40) == ([set()] * 4, True)
    lines = log.read_text()
    assert lines.count("was ended by SIGKILL; starting another one now") == 1
    assert lines.count("was ended by SIGKILL; starting another one in 1 s") == 1, "the second in a row waits"


async def _values(address: str, topic: str) -> set[str]:
    async with Client(address) as client:
        ends = {number: end.offset for number, end in (await client.list_offsets(topic, "latest")).items()}
        found: set[str] = set()
        async with client.consumer(topic) as consumer:
            async for record in consumer:
                found.add((record.value or b"").decode())
                ends[record.partition] -= 1
                if not any(ends.values()):
                    return found
    raise AssertionError("unreachable")


def test_a_hanging_worker_does_not_delay_connections(node_address: str) -> None:
    with gateway("--bootstrap", node_address) as running:
        hung = running.workers()[1]
        os.kill(hung, signal.SIGSTOP)
        try:
            began = time.monotonic()
            for _ in range(12):
                assert httpx.get(f"{running.http}/livez", timeout=30).status_code == 200
            assert time.monotonic() - began < 15, "another worker accepts for it after 2 s; it is killed after 20 s"
            running.wait_for_workers(1)
        finally:
            os.kill(hung, signal.SIGCONT)
        running.wait_for_workers(2)
        assert running.workers()[1] == hung
        assert running.metric("tidelog_gateway_worker_restarts_total") == 0


def test_a_worker_that_gets_sigterm_drains_and_is_replaced(node_address: str) -> None:
    with gateway("--bootstrap", node_address) as running:
        httpx.post(f"{running.http}/v1/topics", json={"name": "drained"}, timeout=30).raise_for_status()
        stopping = running.workers()[0]
        os.kill(stopping, signal.SIGTERM)
        while not has_ended(stopping):
            answer, sent_s = publish_once(running.port, "drained")
            # A worker that stops waits 1 s for the first request of a connection, and for the rest of a body.
            assert answer == 200 or sent_s > 0.5, (answer, sent_s)
        running.wait_for_workers(2)


def publish_once(port: int, topic: str) -> tuple[int | str, float]:
    """Publish over a new connection; return the status or the error, and the seconds until the request was sent."""
    path, body, headers = f"/v1/topics/{topic}/records", json.dumps(BODY), {"content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began_s, sent_s = time.monotonic(), 0.0
    with contextlib.closing(connection):
        try:
            connection.request("POST", path, body, headers)
            sent_s = time.monotonic() - began_s
            return connection.getresponse().status, sent_s
        except (OSError, http.client.HTTPException) as error:
            return repr(error), sent_s or time.monotonic() - began_s


def test_requests_that_end_while_workers_drain_are_counted(node_address: str) -> None:
    with gateway("--bootstrap", node_address) as running:
        httpx.post(f"{running.http}/v1/topics", json={"name": "counted"}, timeout=30).raise_for_status()
        waiting = WaitingReads(running.port, "counted", 8)
        stopping = running.workers()
        for pid in stopping:
            os.kill(pid, signal.SIGTERM)
        assert waiting.statuses() == [200] * 8
        wait_until(lambda: all(map(has_ended, stopping)))
        running.wait_for_workers(2)
        page = running.get("/metrics").splitlines()
        route = "/v1/topics/{topic}/partitions/{partition}/records"
        assert f'tidelog_gateway_requests_total{{method="GET",route="{route}",status="200"}} 8.0' in page


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_drains_all_workers(node_address: str, number: signal.Signals) -> None:
    with gateway("--bootstrap", node_address) as running:
        httpx.post(f"{running.http}/v1/topics", json={"name": f"stop{number}"}).raise_for_status()
        waiting = WaitingReads(running.port, f"stop{number}", 6)
        workers = running.workers()
        assert running.stop(number) == 0
        assert waiting.statuses() == [200] * 6
        assert all(map(has_ended, workers))
        assert is_refused(running.port)


def is_refused(port: int) -> bool:
    """Whether connections to a port are refused."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_second_signal_stops_all_at_once(node_address: str) -> None:
    with gateway("--bootstrap", node_address, TIDELOG_GATEWAY_STOP_TIMEOUT_S="60") as running:
        workers = running.workers()
        os.kill(workers[0], signal.SIGSTOP)
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert running.process.poll() is None
        assert running.stop(signal.SIGTERM) == 1, "a worker was killed"
        assert time.monotonic() - began < 30, "a stop may take 60 s"
        assert all(map(has_ended, workers))


def test_workers_end_when_their_parent_is_killed() -> None:
    with gateway(*NOBODY) as running:
        workers = running.workers()
        os.kill(workers[1], signal.SIGSTOP)
        # When its parent ends, the kernel continues a worker that is suspended by then, and no later one.
        wait_until(lambda: state_of(workers[1]) == "T")
        running.process.kill()
        wait_until(lambda: all(map(has_ended, workers)), within_s=60)
        wait_until(lambda: is_refused(running.port))


def test_websockets_survive_the_end_of_other_workers(node_address: str) -> None:
    asyncio.run(_hold_websockets(node_address))


async def _hold_websockets(node_address: str) -> None:
    with gateway("--bootstrap", node_address) as running:
        address = running.http.replace("http", "ws") + "/v1/ws"
        sockets = await asyncio.gather(
            *(connect(address, subprotocols=[Subprotocol("tidelog.v1.json")], open_timeout=60) for _ in range(60))
        )
        count = await asyncio.to_thread(running.metric, "tidelog_gateway_websockets")
        os.kill(running.workers()[0], signal.SIGKILL)
        await asyncio.to_thread(running.wait_for_workers, 2)
        alive = 0
        for socket_ in sockets:
            try:
                await asyncio.wait_for(await socket_.ping(), 30)
            except ConnectionClosed:
                continue
            alive += 1
        assert count == 60
        assert 10 < alive < 50
        assert await asyncio.to_thread(running.metric, "tidelog_gateway_websockets") == alive
        closes = [asyncio.create_task(socket_.wait_closed()) for socket_ in sockets]
        await asyncio.to_thread(running.stop)
        await asyncio.wait(closes, timeout=10)
        assert sum(socket_.close_code == 1012 for socket_ in sockets) == alive


def test_a_worker_that_cannot_start_ends_the_gateway_with_its_reason(tmp_path: Path) -> None:
    variables = {"TIDELOG_GATEWAY_TLS_CERT_FILE": str(tmp_path / "none.pem")}
    ended = [_run("--workers", str(workers), *NOBODY, **variables) for workers in (1, 2)]
    one, two = ended
    assert one.returncode == two.returncode == 2
    assert one.stderr.strip() in two.stderr
    assert two.stderr.count("none.pem") == 1, "the reason is logged once"


def test_a_port_in_use_is_reported_as_by_a_single_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        one, two = (_run("--workers", workers, "--http-port", port, *NOBODY) for workers in ("1", "2"))
    assert (two.returncode, two.stderr) == (one.returncode, one.stderr)
    assert one.returncode == 1


@pytest.mark.parametrize("workers", ["0", "65", "-1", "two"])
def test_an_invalid_number_of_workers_is_a_usage_error(workers: str) -> None:
    ended = _run("--workers", workers, *NOBODY)
    assert ended.returncode == 2
    assert "workers" in ended.stderr


def test_limits_that_cannot_be_divided_are_a_usage_error() -> None:
    ended = _run("--workers", "4", *NOBODY, TIDELOG_GATEWAY_CONNECTIONS_MAX="3")
    assert ended.returncode == 2
    assert "set connections_max to at least 4, or use fewer workers" in ended.stderr


def test_lines_of_the_access_log_are_not_interleaved(node_address: str, tmp_path: Path) -> None:
    with gateway("--bootstrap", node_address, TIDELOG_GATEWAY_ACCESS_LOG="true") as running:
        path = "/" + "%01" * 600

        def ask() -> None:
            with httpx.Client() as client:
                for _ in range(50):
                    client.get(running.http + path, headers={"user-agent": '"' * 300})

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert running.process.stdout is not None
        lines = [running.process.stdout.readline() for _ in range(400)]
        for thread in threads:
            thread.join()
    assert all(json.loads(line)["status"] == 404 for line in lines)
    assert max(map(len, lines)) < 4096 - 255 - 100, "a line with the longest names is written atomically"


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog_cli", "gateway", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | variables, check=False)


def test_the_pause_before_a_replacement_grows() -> None:
    assert BACK_OFF_S[0] == 0
    assert list(BACK_OFF_S) == sorted(BACK_OFF_S)
