"""Handshakes take turns by address, so that a flood of them delays another address by one."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from tests.authority import Authority
from tests.proto.tls.test_stream import End, Pair, believing, until

from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.tls.reloaded_files import TlsFiles
from tidelog_proto.tls.stream import open_stream


class Always:
    """A connection that takes what it is sent."""

    is_open = is_writable = True

    async def drained(self) -> None:
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority(tmp_path_factory.mktemp("ca")).files("node", "a")


async def test_a_caller_from_elsewhere_waits_for_one_handshake_of_a_flood(files: TlsFiles) -> None:
    """Each waits for its turn; the addresses of this machine count one by one."""
    turns = Turns()
    order: list[str] = []

    class Noting(End):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            order.append(transport.get_extra_info("peername")[0])

    async with Pair(files, Noting, turns=turns) as pair:
        context = believing(files)

        async def call(address: str) -> None:
            async def connect(protocol: asyncio.BaseProtocol) -> None:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: protocol, "127.0.0.1", pair.port, local_addr=(address, 0))

            end = End(100_000)
            await open_stream(end, context, "127.0.0.1", timeout_s=20.0, connect=connect)
            callers.append(end)

        callers: list[End] = []
        flood = [asyncio.create_task(call("127.0.0.2")) for _ in range(40)]
        await until(lambda: pair.entrance.under_way == len(flood))
        await call("127.0.0.3")
        await asyncio.gather(*flood)
        await until(lambda: len(order) == len(callers) == 41)
        for end in callers:
            end.made.result().close()
        await asyncio.gather(*(end.lost for end in callers))
    assert order.index("127.0.0.3") < len(order) // 2


async def test_a_handshake_that_is_given_up_while_it_waits_for_its_turn_ends(files: TlsFiles) -> None:
    turns = Turns()
    async with Pair(files, turns=turns) as pair:
        async with turns.turn(Always()):
            _, writer = await asyncio.open_connection("127.0.0.1", pair.port)
            writer.write(b"\x16\x03\x01\x00\x05hello")
            await until(lambda: pair.entrance.under_way == 1)
            writer.transport.abort()
            await asyncio.sleep(0.05)
            pair.entrance.close()
        await until(lambda: pair.entrance.under_way == 0)
    assert len(pair.failed) == 1


async def test_a_step_that_fails_ends_the_connection(files: TlsFiles) -> None:
    """An exception of the protocol above is raised in a task here, and no transport receives it."""

    class Failing(End):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            raise RuntimeError("a bug above")

    raised: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    async with Pair(files, Failing, turns=Turns()) as pair:
        end = End()

        async def connect(protocol: asyncio.BaseProtocol) -> None:
            await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", pair.port)

        await open_stream(end, believing(files), "127.0.0.1", timeout_s=20.0, connect=connect)
        async with asyncio.timeout(20):
            await end.lost
        gc.collect()  # an unreferenced task reports its exception
    assert [str(error) for error in raised] == ["a bug above"]


async def test_closing_the_entrance_ends_handshakes_that_are_under_way(files: TlsFiles) -> None:
    async with Pair(files, turns=Turns(), timeout_s=600.0) as pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
        await until(lambda: pair.entrance.under_way == 1)
        pair.entrance.close()
        await until(lambda: pair.entrance.under_way == 0)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        writer.close()
