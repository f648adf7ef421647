"""The nodes of a run: real processes with their data, their configuration and a place in the network."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bootstraps import make_bootstrap, save
from tests.faults.disks import SmallDisk
from tests.faults.network import Network
from tests.faults.process import STOP_S, Process
from tests.faults.protection import Protection

from tidelog_broker.base.bootstrap import Founder
from tidelog_cli.up.local_cluster import free_ports

PORT: Final = 7400
FOUNDING: Final = ("node_id", "bootstrap", "seeds")
_REMOVED: Final = "was removed from the cluster"
OLDER: Final = "is an older copy of node"


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
        self.node_id = self.name
        """Node id in the cluster: a replacement has another id."""
        self.protection: Protection | None = None
        """Gives it certificates; None: nothing is encrypted."""
        self.process = Process(self.name, prefix, home.parent / f"{self.name}.log")
        self._expected: set[str] = set()
        """Parts of lines of its log that look alarming and are expected."""

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.process.running

    @property
    def _settings(self) -> tuple[str, str]:
        return ("--config", str(self.home.parent / f"{self.name}.toml"))

    async def start(self, *options: str) -> None:
        """Start it and wait until it logs that it serves.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        ready = await self.process.start("node", *self._settings, *options)
        self.node_id = ready["node_id"]

    async def kill(self) -> None:
        """Kill it; its writes stay in the page cache."""
        await self.process.kill()

    async def removed(self) -> None:
        """Wait until it ends because the cluster has removed it; that it does not counts as a failure of the node."""
        self._expected.add(_REMOVED)
        late, other = f"it ran for {STOP_S} s after it was removed", "when it was removed it ended"
        await self.process.ends(os.EX_CONFIG, late, other)

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
        replaces = ("--replace", "--node-id", gone)
        if self.protection is not None:
            # It logs which certificate it lacks and ends; the operator issues one for its id.
            await self.process.ends_at_start("node", *self._settings, *replaces)
            self.protection.renew(self.name, json.loads((self.data / "node.json").read_text())["node_id"])
        await self.start(*replaces)
        assert self.node_id != gone
        return gone

    def copy_data(self) -> Path:
        """Copy its current data directory to a directory on another disk; return that."""
        copy = self.home.parent / f"{self.name}-copy"
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(self.data, copy))

    async def refused_with(self, copy: Path) -> None:
        """Start it twice with an older copy of its data directory; it has to end both times, with the reason.

        Raises:
            RuntimeError: it serves, or ends for another reason.
        """
        assert not self.running
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        shutil.rmtree(copy)
        self._expected.add(OLDER)
        for _ in range(2):
            said_before = self.process.log.read_text(errors="replace").count(OLDER)
            await self.process.ends_at_start("node", *self._settings)
            if self.process.log.read_text(errors="replace").count(OLDER) == said_before:
                raise RuntimeError(f"{self.name} ended, but not because its data directory is an older copy")

    async def stop(self) -> None:
        """Ask it to stop and wait. Ending with anything but 0, or not in time, counts as a failure of the node."""
        await self.process.stop()

    def pause(self) -> None:
        """Stop it where it is; it does not know."""
        self.process.pause()

    def resume(self) -> None:
        """Resume it."""
        self.process.resume()

    def failures(self) -> list[str]:
        """Return faults of the node itself: unexpected ends, and alarming lines of its log."""
        return self.process.failures(self._expected)


def make_nodes(
    count: int,
    base: Path,
    network: Network | None,
    small_disk_mib: int | None,
    protection: Protection | None = None,
) -> list[Node]:
    """Return the nodes of a new cluster with their configuration written; the last one gets the small disk.

    Args:
        count: number of nodes; at least two.
        base: an empty directory.
        network: where they live; None for this machine's own loopback.
        small_disk_mib: the size of that disk, None for no such disk.
        protection: gives them certificates; None: nothing is encrypted.
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
    save(make_bootstrap("faults", founders), base / "bootstrap.json")
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
        if network is not None:
            settings["insecure"] = True  # an isolated network
        if count > 1:
            settings |= {
                "node_id": node.name,
                "bootstrap": str(base / "bootstrap.json"),
                "secret_file": str(base / "secret"),
            }
        if protection is not None:
            node.protection = protection
            settings |= protection.settings_of(node.name, node.host)
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (base / f"{node.name}.toml").write_text("\n".join(["[node]", *lines]) + "\n")
    return nodes
