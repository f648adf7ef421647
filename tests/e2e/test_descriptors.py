"""Nodes and gateways that may have few files open."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidelog import errors, sync

pytestmark = pytest.mark.e2e

PARTITIONS = 400
LIMIT = 256
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Limited:
    """A process that may have few files open."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ready['port']}"

    def limits(self) -> tuple[int, int]:
        """Return the soft and the hard limit of open files."""
        text = Path(f"/proc/{self.process.pid}/limits").read_text()
        found = re.search(r"Max open files\s+(\d+)\s+(\d+)", text)
        assert found is not None
        return int(found[1]), int(found[2])


@contextlib.contextmanager
def limited(tmp_path: Path, limits: str, command: Sequence[object]) -> Iterator[Limited]:
    log = tmp_path / f"{command[0]}.log"
    shell = ["/bin/sh", "-c", f'{limits}; exec "$0" "$@"', sys.executable, "-m", "tidelog_cli", *map(str, command)]
    with log.open("wb") as stderr, subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            assert process.stdout is not None
            yield Limited(process, json.loads(process.stdout.readline()), log)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def node_command(tmp_path: Path) -> list[object]:
    return ["node", "--data", tmp_path / "data", "--port", 0, "--management-port", 0]


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with limited(tmp_path, "ulimit -Sn 256; ulimit -Hn 8000", node_command(tmp_path)) as node:
        assert node.limits() == (8000, 8000)
        command = ["gateway", "--bootstrap", node.address, "--http-port", 0]
        with limited(tmp_path, "ulimit -Sn 256; ulimit -Hn 8000", command) as gateway:
            assert gateway.limits() == (8000, 8000)
            assert "connections_max = 10000" in gateway.log.read_text()
        assert "connections_max" not in node.log.read_text()


def test_a_reader_of_many_partitions_leaves_others_their_connections(tmp_path: Path) -> None:
    with limited(tmp_path, f"ulimit -n {LIMIT}", node_command(tmp_path)) as node:
        assert f"the limit of open files is {LIMIT}" in node.log.read_text()
        assert "raise the limit of open files" in node.log.read_text()
        with sync.Client(node.address) as client:
            client.create_topic("t", partitions=PARTITIONS, flush="never")
            with client.producer("t") as producer:
                for partition in range(PARTITIONS):
                    producer.enqueue(b"x", partition=partition)
                producer.flush()
            with client.consumer("t") as consumer:
                read = 0
                while read < PARTITIONS:
                    read += len(consumer.poll(PARTITIONS))
                with sync.Client(node.address) as another:
                    assert len(another.topics()) == 1
            with contextlib.ExitStack() as stack:
                for _ in range(LIMIT):  # all unauthenticated
                    stack.enter_context(socket.create_connection((client_host(node)), timeout=PATIENCE_S))
                with sync.Client(node.address) as another:
                    assert len(another.topics()) == 1
            clients = [sync.Client(node.address) for _ in range(LIMIT)]
            refusals: list[str] = []
            for each in clients:
                try:
                    each.connect()
                except errors.TidelogError as error:
                    refusals.append(str(error))
            assert refusals
            assert all("connections" in refusal for refusal in refusals)
            for each in clients:
                each.close()
            client.create_topic("afterwards")
        assert "check the disk" not in node.log.read_text()


def client_host(node: Limited) -> tuple[str, int]:
    return "127.0.0.1", int(node.ready["port"])
