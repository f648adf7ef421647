from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from tidelog_proto.wire.name_resolution import (
    by_turns,
    connect_to,
    connected_socket,
    look_up,
    most_informative,
    over_socket,
)

ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 7400))]


class NameServer:
    """Replaces `socket.getaddrinfo`, and answers when the test allows it."""

    def __init__(self, answer: list[tuple[Any, ...]] | Exception) -> None:
        self.answer = answer
        self.asked = 0
        self.let = threading.Event()

    def __call__(self, *_: object, flags: int = 0) -> list[tuple[Any, ...]]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        self.asked += 1
        self.let.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def put(monkeypatch: pytest.MonkeyPatch, server: NameServer) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", server)


async def test_a_number_is_its_own_answer_and_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    assert (await look_up("127.0.0.1", 7400, kind=socket.SOCK_STREAM))[0][4] == ("127.0.0.1", 7400)


async def test_a_name_is_looked_up() -> None:
    assert (await look_up("localhost", 0, family=socket.AF_INET, kind=socket.SOCK_DGRAM))[0][4] == ("127.0.0.1", 0)


async def test_concurrent_equal_lookups_share_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, server := NameServer(ADDRESS))
    first, second = (asyncio.ensure_future(look_up("node1", 7400, kind=socket.SOCK_STREAM)) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    server.let.set()
    assert await second == ADDRESS
    assert server.asked == 1
    assert await look_up("node1", 7400, kind=socket.SOCK_STREAM) == ADDRESS
    assert server.asked == 2, "an answer is not kept: names move"


async def test_lookup_error_is_raised_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, server := NameServer(socket.gaierror(socket.EAI_AGAIN, "no answer")))
    server.let.set()
    with pytest.raises(socket.gaierror, match="no answer"):
        await look_up("node1", 7400, kind=socket.SOCK_STREAM)


async def test_the_first_address_that_takes_a_connection_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = asyncio.Event()

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    nobody = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.3")]
    put(monkeypatch, names := NameServer([*nobody, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]))
    names.let.set()
    async with server:
        await connect_to(asyncio.Protocol(), "node1", port)
        await asyncio.wait_for(taken.wait(), 10)
        names.answer = nobody
        with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.2"):
            await connect_to(asyncio.Protocol(), "node1", port)


def listening(host: str, port: int = 0) -> socket.socket:
    listener = socket.socket()
    try:
        listener.bind((host, port))
        listener.listen(0)
    except OSError:
        listener.close()
        raise
    return listener


def listening_on_both() -> tuple[socket.socket, socket.socket]:
    """Return a socket on 127.0.0.2 and one on 127.0.0.1 with the same port, which no other process uses."""
    for _ in range(100):
        first = listening("127.0.0.2")
        try:
            return first, listening("127.0.0.1", first.getsockname()[1])
        except OSError:
            first.close()
    pytest.fail("no port is free on both addresses")


@pytest.fixture
def swallowing() -> Iterator[tuple[tuple[str, int], socket.socket]]:
    """Yield an address whose full queue drops connection requests, and a socket with the same port on 127.0.0.1."""
    listener, beside = listening_on_both()
    with listener, beside:
        waiting: list[socket.socket] = []
        for _ in range(8):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(listener.getsockname())
        yield listener.getsockname(), beside
        for each in waiting:
            each.close()


async def test_an_address_that_swallows_packets_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, swallowing: tuple[tuple[str, int], socket.socket]
) -> None:
    (dropping, port), beside = swallowing
    server = await asyncio.start_server(lambda _, writer: writer.close(), sock=beside)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in (dropping, "127.0.0.1")]
    put(monkeypatch, names := NameServer(found))
    names.let.set()
    async with server:
        with await asyncio.wait_for(connected_socket("node1", port), 30) as connected:
            assert connected.getpeername()[0] == "127.0.0.1"


async def test_a_cancelled_connect_closes_its_sockets(
    monkeypatch: pytest.MonkeyPatch, swallowing: tuple[tuple[str, int], socket.socket]
) -> None:
    address, _ = swallowing
    put(monkeypatch, names := NameServer([(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]))
    names.let.set()
    made: list[socket.socket] = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connected_socket("node1", address[1], prepare=made.append), 0.1)
    await asyncio.sleep(0)
    assert [each.fileno() for each in made] == [-1]


def test_families_are_tried_by_turns() -> None:
    def of(family: int, *names: str) -> list[tuple[Any, ...]]:
        return [(family, socket.SOCK_STREAM, 6, "", (name, 1)) for name in names]

    found = of(socket.AF_INET6, "a", "b", "c") + of(socket.AF_INET, "d")
    assert [one[4][0] for one in by_turns(found)] == ["a", "d", "b", "c"]


def test_most_informative_of_several_errors_is_raised() -> None:
    refused, unreachable = ConnectionRefusedError("refused"), OSError("no route to host")
    assert most_informative([refused, unreachable]) is unreachable
    assert most_informative([refused, ConnectionRefusedError("refused, too")]) is refused


STOPS = """
import asyncio, socket, time, uvloop
from tidelog_proto.wire.name_resolution import most_informative, connect_to, look_up
really = socket.getaddrinfo
socket.getaddrinfo = lambda *asked, flags=0: really(*asked, flags=flags) if flags else time.sleep(60)
async def main():
    try:
        await asyncio.wait_for(look_up("node1", 7400, kind=socket.SOCK_STREAM), 0.1)
    except TimeoutError:
        print("stops")
uvloop.run(main())
"""


def test_a_process_ends_while_a_name_server_does_not_answer() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", STOPS], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stops\n", "")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("end", ["close", "abort", "cancel"])
def test_no_descriptor_is_closed_twice(run: Callable[[Coroutine[Any, Any, None]], None], end: str) -> None:
    """The number of a closed descriptor is soon that of another one, which must stay open."""

    class Ends(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if end != "cancel":
                getattr(transport, end)()

    async def connect(address: tuple[str, int]) -> int:
        connected = await connected_socket(*address)
        number = connected.fileno()
        attaching = asyncio.create_task(over_socket(Ends(), connected))
        await asyncio.sleep(0)
        if end == "cancel":
            attaching.cancel()
        await asyncio.wait([attaching])
        assert attaching.cancelled() is (end == "cancel")
        await asyncio.sleep(0.05)
        return number

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = await connect(server.getsockname())
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)
            other = os.open(os.devnull, os.O_RDONLY)
            assert other == number
            gc.collect()
            os.close(other)  # it is open

    run(main())
