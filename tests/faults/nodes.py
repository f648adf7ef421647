"""The nodes of a run: real processes that are started, killed, stopped, woken and watched.

Only what was started here is ever signalled, by its process object. A node's log goes to a file of its own, in which
what a healthy node never says is looked for in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults import tied
from tests.faults.disks import SmallDisk
from tests.faults.network import Network

from tidelog_broker.bootstrap import Founder, make_bootstrap
from tidelog_cli.local_cluster import free_ports

READY_S: Final = 60
STOP_S: Final = 40
PORT: Final = 7400
LAST_WORDS: Final = 15
"""Lines of its log that are shown when a node does not start."""
FOUNDING: Final = ("node_id", "bootstrap", "seeds")
_REMOVED: Final = "was removed from the cluster"
_ALARMING: Final = re.compile(r" ERROR | CRITICAL |^Traceback|^\w*Error|DIVERGED|DATA_LOSS|never retrieved")


class Node:
    """One node: its place, its data, and the process if there is one."""

    def __init__(self, number: int, host: str, port: int, home: Path, prefix: tuple[str, ...]) -> None:
        self.number = number
        self.name = f"n{number}"
        self.host = host
        self.port = port
        self.home = home
        self.data = home / "data"
        self.disk: SmallDisk | None = None
        self.log = home.parent / f"{self.name}.log"
        self.node_id = self.name
        """What the cluster calls it: a replacement has another id."""
        self.bad_ends: list[str] = []
        self.paused = False
        self._prefix = prefix
        self._process: Process | None = None
        self._expected = False
        self._was_removed = False

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self, *options: str) -> None:
        """Start it and wait until it says that it serves.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        assert not self.running
        self._note_end()
        settings = ("--config", str(self.home.parent / f"{self.name}.toml"))
        command = [*self._prefix, sys.executable, "-m", "tidelog_cli", "node", *settings, *options]
        tying = [sys.executable, "-S", tied.__file__, str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*tying, *command, stdout=PIPE, stderr=log)
        self._expected = self.paused = False
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self.name} was not ready after {READY_S} s: {self._last_words()}") from None
        if not line:
            code = await self._process.wait()
            raise RuntimeError(f"{self.name} ended with {code} at its start: {self._last_words()}")
        ready = json.loads(line)
        assert ready["event"] == "ready"
        self.node_id = ready["node_id"]

    async def kill(self) -> None:
        """End it without a warning; what it has written stays in the page cache."""
        if self._process is not None and self.running:
            self._expected = True
            self._process.kill()
            await self._process.wait()
        self.paused = False

    async def removed(self) -> None:
        """Wait until it ends because the cluster has removed it; that it does not counts as a failure of the node."""
        assert self._process is not None
        self._expected = self._was_removed = True
        try:
            async with asyncio.timeout(STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            self.bad_ends.append(f"it went on for {STOP_S} s after it was removed")
            return
        if code != os.EX_CONFIG:
            self.bad_ends.append(f"it ended with {code} when it was removed")

    async def replace(self, seeds: Sequence[str]) -> str:
        """Lose the data of a node that was killed, and start another one in its place; return the id that is no more.

        The new one asks `seeds`: founders that the bootstrap file names may have been replaced themselves.

        Raises:
            RuntimeError: it did not start.
        """
        assert not self.running
        gone = self.node_id
        shutil.rmtree(self.data)
        settings = self.home.parent / f"{self.name}.toml"
        kept = [line for line in settings.read_text().splitlines() if line.split(" ")[0] not in FOUNDING]
        settings.write_text("\n".join([*kept, f"seeds = {json.dumps(list(seeds))}"]) + "\n")
        await self.start("--replace", "--node-id", gone)
        assert self.node_id != gone
        return gone

    async def stop(self) -> None:
        """Ask it to stop and wait. Ending with anything but 0, or not in time, counts as a failure of the node."""
        self.resume()
        if self._process is None or not self.running:
            return
        self._expected = True
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            self.bad_ends.append(f"it had not stopped {STOP_S} s after SIGTERM")
            return
        if code != 0:
            self.bad_ends.append(f"it stopped with {code}")

    def pause(self) -> None:
        """Stop it where it is; it does not know."""
        if self.running and self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        """Let it go on."""
        if self.paused and self.running and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def failures(self) -> list[str]:
        """Return what went wrong with the node itself: ends that nobody asked for, and alarming lines of its log."""
        self._note_end()
        ends = [f"{self.name}: {end}" for end in self.bad_ends]
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        alarming = [(at, line) for at, line in enumerate(lines, 1) if _ALARMING.search(line)]
        found = [
            f"{self.name}.log:{at}: {line}" for at, line in alarming if not (self._was_removed and _REMOVED in line)
        ]
        return ends + found

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
        return "\n".join([f"the last lines of {self.log}:", *lines])

    def _note_end(self) -> None:
        if self._process is not None and self._process.returncode is not None and not self._expected:
            self.bad_ends.append(f"it ended by itself with {self._process.returncode}")
            self._expected = True


def make_nodes(count: int, base: Path, network: Network | None, small_disk_mib: int | None) -> list[Node]:
    """Return the nodes of a new cluster with their configuration written; the last one gets the small disk.

    Args:
        count: how many; one alone is no cluster.
        base: an empty directory.
        network: where they live; None for this machine's own loopback.
        small_disk_mib: the size of that disk, None for no such disk.
    """
    nodes: list[Node] = []
    ports = [PORT] * count if network else free_ports(count)
    for number, port in enumerate(ports, 1):
        host = network.address(number) if network else "127.0.0.1"
        prefix = network.command(number) if network else ()
        nodes.append(Node(number, host, port, base / f"n{number}", prefix))
    if small_disk_mib is not None:
        nodes[-1].disk = SmallDisk(nodes[-1].home, small_disk_mib)
    (base / "secret").write_text("of this run only, " + os.urandom(16).hex() + "\n")
    (base / "secret").chmod(0o600)
    founders = [Founder.model_validate({"node_id": node.name, "host": node.host, "port": node.port}) for node in nodes]
    make_bootstrap("faults", founders).save(base / "bootstrap.json")
    for node in nodes:
        node.home.mkdir(exist_ok=True)
        settings: dict[str, str | int] = {
            "data": str(node.data),
            "host": node.host,
            "port": node.port,
            "management_host": "127.0.0.1",
            "management_port": 0,
            "retention_interval_ms": 1000,
        }
        if count > 1:
            settings |= {
                "node_id": node.name,
                "bootstrap": str(base / "bootstrap.json"),
                "secret_file": str(base / "secret"),
            }
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (base / f"{node.name}.toml").write_text("\n".join(["[node]", *lines]) + "\n")
    return nodes
