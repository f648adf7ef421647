"""Nodes that a test kills and starts again, as processes on ports that stay theirs: one, or a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidelog_cli.up.local_cluster import free_ports, prepare

WAIT_S = 60


class Node:
    """A node that runs, or is down.

    Args:
        port: its native one.
        command: its command line, as words of `tidelog`.
        log: the file that takes what it says.
    """

    def __init__(self, port: int, command: Sequence[str], log: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start its process; `ready` waits for it."""
        assert self._process is None
        command = [sys.executable, "-m", "tidelog_cli", *self._command]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def ready(self) -> None:
        """Wait until it serves."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        assert json.loads(line)["event"] == "ready"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.begin()
        self.ready()

    def kill(self) -> None:
        """End it with -9."""
        assert self._process is not None
        self._process.kill()
        self.killed()

    def killed(self) -> None:
        """Wait until it has ended, whoever it is that kills it."""
        process, self._process = self._process, None
        assert process is not None
        process.wait(WAIT_S)
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        """End it if it runs."""
        if self._process is not None:
            self.kill()


@contextmanager
def one_node(directory: Path) -> Iterator[Node]:
    """Run a single node."""
    (port,) = free_ports(1)
    command = ["node", "--data", str(directory / "data"), "--port", str(port), "--management-port", "0"]
    node = Node(port, command, directory / "node.log")
    try:
        node.start()
        yield node
    finally:
        node.close()


@contextmanager
def three_nodes(directory: Path) -> Iterator[dict[str, Node]]:
    """Run a cluster; the value is its nodes by id."""
    found = prepare(directory / "cluster", nodes=3, port=0, first_port=0, management_ports=[0])
    nodes = {each.node_id: Node(each.port, each.command, directory / f"{each.node_id}.log") for each in found}
    with ExitStack() as stack:
        for node in nodes.values():
            stack.callback(node.close)
            node.begin()
        for node in nodes.values():
            node.ready()
        yield nodes
