"""Nodes with mapped ports, and names with several addresses, one of which drops packets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog.testing.free_ports import HOST, free_ports

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0


@dataclass
class MappedPort:
    """A TCP and UDP port that leads to another one, as a container's or a router's."""

    port: int
    target: int
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._relay, HOST, self.port)
        datagrams, _ = await loop.create_datagram_endpoint(
            lambda: _MappedDatagrams(self.target), local_addr=(HOST, self.port)
        )
        try:
            yield
        finally:
            server.close()
            datagrams.close()
            for writer in self._writers:
                writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            there = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        self._writers.append(there[1])
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


class _MappedDatagrams(asyncio.DatagramProtocol):
    def __init__(self, target: int) -> None:
        self._target = target
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if addr[1] != self._target:
            self._transport.sendto(data, (HOST, self._target))


@dataclass(frozen=True)
class RunningNode:
    port: int
    node_id: str


@contextlib.asynccontextmanager
async def node(data: Path, *options: object) -> AsyncIterator[RunningNode]:
    """Run a node with options besides its directory and management port."""
    command = [sys.executable, "-m", "tidelog_cli", "node", "--data", data, "--management-port", 0, *options]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            ready = json.loads(await process.stdout.readline())
        yield RunningNode(ready["port"], ready["node_id"])
    finally:
        process.kill()
        await process.wait()


async def test_metadata_names_the_mapped_port(tmp_path: Path) -> None:
    port, mapped = free_ports(2)
    options = ("--port", port, "--advertise-port", mapped)
    async with (
        MappedPort(mapped, port).serving(),
        node(tmp_path / "data", *options),
        Client(f"{HOST}:{mapped}") as client,
    ):
        await client.create_topic("t")
        async with client.producer("t") as producer:
            await producer.send(b"x")
        status = await client.cluster_status()
        assert [(one.host, one.port) for one in status.nodes] == [(HOST, mapped)]


async def test_the_cluster_that_answers_at_a_wrong_address_is_named(tmp_path: Path) -> None:
    """The first node advertises the port of the second one, as with a mapped port that is not configured."""
    port, other = free_ports(2)
    async with (
        node(tmp_path / "one", "--port", port, "--advertise-port", other),
        node(tmp_path / "two", "--port", other) as second,
    ):
        async with Client(f"{HOST}:{port}", request_timeout_s=3.0) as client:
            await client.create_topic("t")
            with pytest.raises(TidelogError) as caught:
                async with client.producer("t", delivery_timeout_s=6.0) as producer:
                    await producer.send(b"x")
        assert f"node '{second.node_id}' of another cluster" in str(caught.value)
        assert "set advertise_host and advertise_port" in str(caught.value)


async def test_a_cluster_works_with_port_mapping(tmp_path: Path) -> None:
    ports = free_ports(6)
    listened, mapped = ports[:3], ports[3:]
    nodes = [
        {"node_id": f"n{number}", "host": HOST, "port": port, "gossip_port": port} for number, port in enumerate(mapped)
    ]
    document = {"format_version": 1, "cluster_id": secrets.token_hex(16), "name": "mapped", "nodes": nodes}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text(secrets.token_hex(32))
    async with contextlib.AsyncExitStack() as stack:
        starting = []
        for number, (port, outside) in enumerate(zip(listened, mapped, strict=True)):
            await stack.enter_async_context(MappedPort(outside, port).serving())
            files = ("--bootstrap", tmp_path / "cluster.json", "--secret-file", tmp_path / "secret")
            where = ("--node-id", f"n{number}", "--port", port, "--gossip-port", port)
            starting.append(stack.enter_async_context(node(tmp_path / f"data{number}", *files, *where)))
        await asyncio.gather(*starting)
        client = await stack.enter_async_context(Client(f"{HOST}:{mapped[0]}"))
        await client.create_topic("t", partitions=3)
        async with client.producer("t") as producer:
            for partition in range(3):
                await producer.send(b"x", partition=partition)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await client.cluster_status()
                if {one.membership for one in status.nodes} == {"alive"} and len(status.nodes) == 3:
                    break
                await asyncio.sleep(0.1)
        assert sorted(one.port for one in status.nodes) == sorted(mapped)


async def test_an_address_that_drops_packets_is_skipped_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = socket.getaddrinfo
    async with node(tmp_path / "data", "--port", 0) as running:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.2", running.port))
            deaf.listen(0)
            waiting = [socket.socket() for _ in range(8)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.2", running.port))

            def found(host: str, port: int, *others: Any, **named: Any) -> Any:
                if host != "two.example":
                    return really(host, port, *others, **named)
                if named.get("flags", 0) & socket.AI_NUMERICHOST:
                    raise socket.gaierror(socket.EAI_NONAME, "no number")
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.2", HOST)]

            monkeypatch.setattr(socket, "getaddrinfo", found)
            async with Client(f"two.example:{running.port}", request_timeout_s=5.0) as client:
                await client.create_topic("t")
            for each in waiting:
                each.close()
