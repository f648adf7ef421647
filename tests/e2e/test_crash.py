"""A node as its own process, killed, interrupted and started where it must not be, with the real client on it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog import Client
from tidelog_cli.up.local_cluster import free_ports

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 30
PARTITIONS = 2
LOADS = ("a", "b", "c")
BURST = 20


def start(data: Path, *, port: int = 0, management_port: int = 0) -> subprocess.Popen[str]:
    """Start a node; its ready line is still to be read."""
    arguments = ["node", "--data", str(data), "--port", str(port), "--management-port", str(management_port)]
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the ready line and return it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, errors = process.communicate(timeout=START_TIMEOUT_S)
        raise AssertionError(f"the node ended with {process.returncode}: {errors}")
    told: dict[str, Any] = json.loads(line)
    assert told["event"] == "ready"
    return told


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal to a node and wait; return its exit code and output."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=START_TIMEOUT_S)
    return process.returncode, errors


def refused(data: Path, **ports: int) -> str:
    """Start a node that must not start; return its output, which is one line."""
    process = start(data, **ports)
    out, errors = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode not in {0, None}
    assert out == ""
    assert "Traceback" not in errors
    return errors.strip().splitlines()[-1]


class Load:
    """Publishes numbered values continuously, in bursts, and records the acknowledged ones."""

    def __init__(self, client: Client, name: str) -> None:
        self.producer = client.producer("t", delivery_timeout_s=60)
        self.name = name
        self.sent = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.stopping = False

    async def run(self) -> None:
        async with self.producer:
            while not self.stopping:
                values = [f"{self.name}:{self.sent + index}".encode() for index in range(BURST)]
                self.sent += BURST
                pending = [
                    (value, await self.producer.enqueue(value, partition=index % PARTITIONS))
                    for index, value in enumerate(values)
                ]
                for value, receipt in pending:
                    got = await receipt
                    self.acknowledged[value] = (got.partition, got.offset)


async def stored(client: Client) -> dict[int, list[bytes]]:
    """Return every value of each partition, by offset."""
    values: dict[int, list[bytes]] = {}
    for partition in range(PARTITIONS):
        found = values[partition] = []
        while True:
            fetched = await client.fetch("t", partition, len(found))
            if not fetched.batches:
                break
            for one in fetched.batches:
                assert one.base_offset == len(found)
                found += [value or b"" for value in one.values()]
    return values


def check(values: dict[int, list[bytes]], loads: list[Load]) -> None:
    """Compare the log with the acknowledged values: none lost, duplicate or out of order."""
    everything = [value for found in values.values() for value in found]
    assert len(everything) == len(set(everything)), "a record was stored twice"
    for load in loads:
        for value, (partition, offset) in load.acknowledged.items():
            assert values[partition][offset] == value
        for found in values.values():
            own = [int(value.split(b":")[1]) for value in found if value.startswith(load.name.encode() + b":")]
            assert own == sorted(own), "a producer's records changed their order"


@pytest.mark.parametrize("flush", ["always", pytest.param("never", marks=pytest.mark.long)])
async def test_killed_again_and_again_under_load(tmp_path: Path, flush: Any) -> None:
    """The same producers continue over every kill; in the end each record that they sent exists once, in order."""
    data, port, rng = tmp_path / "data", free_ports(1)[0], random.Random(flush)
    process = start(data, port=port)
    await asyncio.to_thread(ready, process)
    try:
        async with Client(f"127.0.0.1:{port}", request_timeout_s=60) as client:
            await client.create_topic("t", partitions=PARTITIONS, flush=flush)
            loads = [Load(client, name) for name in LOADS]
            running = [asyncio.create_task(load.run()) for load in loads]
            for _ in range(4):
                target = sum(len(load.acknowledged) for load in loads) + rng.randint(100, 600)
                while sum(len(load.acknowledged) for load in loads) < target:
                    assert not any(task.done() for task in running), "a load has failed"
                    await asyncio.sleep(0.001)  # the kill waits for acknowledgements, which have no event
                await asyncio.to_thread(end, process, signal.SIGKILL)
                process = start(data, port=port)
                await asyncio.to_thread(ready, process)
            for load in loads:
                load.stopping = True
            await asyncio.gather(*running)
            assert [load.sent for load in loads] == [len(load.acknowledged) for load in loads]
            values = await stored(client)
        check(values, loads)
        assert sum(map(len, values.values())) == sum(load.sent for load in loads)
        code, errors = await asyncio.to_thread(end, process)
        assert (code, "Traceback" in errors, "CRITICAL" in errors) == (0, False, False), errors
    finally:
        process.kill()


def begun(data: Path) -> tuple[int, bool]:
    """Return how many nodes have begun on a directory, and whether the last one stopped cleanly."""
    try:
        record = json.loads((data / "node.json").read_text())
    except FileNotFoundError:
        return 0, False
    return record["boot_counter"], record["stopped_cleanly"]


@pytest.mark.long
def test_interrupted_at_any_moment_it_ends_and_starts_again(tmp_path: Path) -> None:
    """Ctrl-C while Python loads, while the node recovers, has just begun to listen, or serves."""
    data, rng = tmp_path / "data", random.Random(5)
    for _ in range(8):
        count, _ = begun(data)
        process = start(data)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.1, 1.2))  # at a random time
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=START_TIMEOUT_S)
        count_now, cleanly = begun(data)
        if count_now > count:  # before that it is Python's start that was interrupted
            assert "Traceback" not in errors
            assert process.returncode in {0, 1, 130}
            assert process.returncode == 0 or not cleanly
            assert cleanly or not told, "a clean stop is logged"
    process = start(data)
    ready(process)
    code, errors = end(process, signal.SIGINT)
    assert code == 0, errors
    assert "Traceback" not in errors
    assert begun(data)[1]


def test_two_interrupts_in_a_row_are_one(tmp_path: Path) -> None:
    process = start(tmp_path / "data")
    ready(process)
    process.send_signal(signal.SIGINT)
    code, errors = end(process, signal.SIGINT)
    assert code == 0, errors


@pytest.mark.long
def test_a_second_node_on_the_same_directory_names_the_first(tmp_path: Path) -> None:
    process = start(tmp_path / "data")
    ready(process)
    try:
        message = refused(tmp_path / "data")
        assert str(process.pid) in message
        assert "in use" in message
    finally:
        assert end(process)[0] == 0


@pytest.mark.parametrize("which", ["port", "management_port"])
def test_a_port_in_use_is_named(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(tmp_path / "data", **{which: port})
    assert "in use" in message
    assert str(port) in message
    assert "or set --port" in message


def test_a_directory_of_another_version_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = start(data)
    ready(process)
    assert end(process)[0] == 0
    record = json.loads((data / "node.json").read_text())
    record["format_version"] = 99
    (data / "node.json").write_text(json.dumps(record))
    message = refused(data)
    assert "99" in message
    assert json.loads((data / "node.json").read_text()) == record


def test_directory_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"beach")
    assert "holiday.jpg" in refused(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]  # noqa: PTH208 - names are compared
