"""`TlsStream` over real sockets on both event loops: data, backpressure, and failures of the peer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Self

import pytest
import uvloop
from tests.authority import Authority
from tests.proto.key_changes import KeyChanger

from tidelog_proto.limits import MIB
from tidelog_proto.tls.handshakes import TlsAcceptor
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context, server_context
from tidelog_proto.tls.stream import (
    BYTES_WITHOUT_DATA_MAX,
    CHUNK_BYTES,
    NotTlsError,
    TlsError,
    TlsStream,
    begins_tls,
    open_stream,
)

RUNNERS: Final = [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")]
Runner = Callable[[Coroutine[Any, Any, None]], None]


class End(asyncio.BufferedProtocol):
    """One end: keeps what came, in a buffer of a size of its own."""

    def __init__(self, room_bytes: int = 100_000) -> None:
        loop = asyncio.get_running_loop()
        self.made: asyncio.Future[asyncio.Transport] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.came = bytearray()
        self.news = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._room = memoryview(bytearray(room_bytes))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)  # type: ignore[arg-type]

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.came += self._room[:nbytes]
        self.news.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)
        self.news.set()

    async def until(self, size_bytes: int) -> bytes:
        async with asyncio.timeout(30):
            while len(self.came) < size_bytes and not self.lost.done():
                self.news.clear()
                await self.news.wait()
        return bytes(self.came)


class Pair:
    """A server in TLS, and whoever calls it."""

    def __init__(self, server: TlsFiles, make: Callable[[], End] = End, **entrance: Any) -> None:
        self.make = make
        self.failed: list[TlsError] = []
        self.ends: list[End] = []
        self.context = server_context(server)
        named: dict[str, Any] = {"timeout_s": 10.0} | entrance
        self.entrance = TlsAcceptor(lambda: self.context, failed=self.failed.append, **named)
        self.listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self.listener = await asyncio.get_running_loop().create_server(self._admit, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.listener is not None
        self.entrance.close()
        self.listener.close()

    def _admit(self) -> TlsStream:
        self.ends.append(self.make())
        return self.entrance.admit(self.ends[-1])

    @property
    def port(self) -> int:
        assert self.listener is not None
        return int(self.listener.sockets[0].getsockname()[1])

    async def call(self, context: ssl.SSLContext | None, host: str = "127.0.0.1", room_bytes: int = 100_000) -> End:
        end = End(room_bytes)

        async def connect(protocol: asyncio.BaseProtocol) -> None:
            await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", self.port)

        await open_stream(end, context, host, timeout_s=10.0, connect=connect)
        return end


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority(tmp_path_factory.mktemp("ca")).files("node", "a")


def believing(files: TlsFiles) -> ssl.SSLContext:
    return client_context(TlsFiles(ca=files.ca))


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_pass_both_ways_whole_and_in_order(run: Runner, version: ssl.TLSVersion, files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            context = believing(files)
            context.maximum_version = version
            end = await pair.call(context, room_bytes=70_001)
            other = pair.ends[0]
            large = bytes(range(256)) * (3 * MIB // 256)
            transport = await other.made
            transport.writelines([b"head", memoryview(large), b"", memoryview(b"tail")])
            (await end.made).write(large[:100_003])
            assert await end.until(len(large) + 8) == b"head" + large + b"tail"
            assert await other.until(100_003) == large[:100_003]
            assert transport.get_extra_info("ssl_object").version() == version.name.replace("v1_", "v1.")
            (await end.made).write(b"last words")
            (await end.made).close()
            assert await asyncio.wait_for(other.lost, 10) is None
            assert bytes(other.came).endswith(b"last words"), "data written before the close arrives"
            assert await asyncio.wait_for(end.lost, 10) is None
            assert pair.failed == []

    run(scenario())


@pytest.mark.parametrize("run", RUNNERS)
def test_unread_data_stays_with_the_sender_and_is_counted(run: Runner, files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            end = await pair.call(believing(files))
            other = pair.ends[0]
            reading = await end.made
            reading.pause_reading()
            sending = await other.made
            sending.set_write_buffer_limits(high=4 * MIB)
            sent_bytes = 0
            while sending.get_write_buffer_size() < 6 * MIB:
                sending.write(bytes(MIB))
                sent_bytes += MIB
                await asyncio.sleep(0)
                assert sent_bytes < 100 * MIB
            await until(lambda: not other.may_write.is_set())
            assert len(end.came) <= 2 * CHUNK_BYTES, "a paused protocol gets no data"
            waits_bytes = sending.get_write_buffer_size()
            sending.write(b"x")
            assert waits_bytes < sending.get_write_buffer_size() < waits_bytes + 100
            reading.resume_reading()
            assert len(await end.until(sent_bytes + 1)) == sent_bytes + 1
            await until(lambda: other.may_write.is_set() and not sending.get_write_buffer_size())
            sending.abort()
            await asyncio.wait_for(end.lost, 10)

    run(scenario())


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(
    ("host", "why"), [("other.invalid", "not valid for 'other.invalid'"), ("127.0.0.2", "not valid for '127.0.0.2'")]
)
def test_a_certificate_for_another_host_is_refused_and_the_server_hears_of_it(
    run: Runner, host: str, why: str, files: TlsFiles
) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            with pytest.raises(TlsError, match=why):
                await pair.call(believing(files), host)
            await until(lambda: bool(pair.failed))
            assert "does not accept the certificate" in str(pair.failed[0])
            assert not pair.ends[0].made.done(), "no protocol got the connection"

    run(scenario())


def test_certificate_of_another_ca_is_reported_on_both_sides(files: TlsFiles, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "strangers").files("node", "s")

    async def scenario() -> None:
        async with Pair(files) as pair:
            with pytest.raises(TlsError, match="certificate is refused: its CA is not one of the trusted CAs"):
                await pair.call(client_context(TlsFiles(ca=stranger.ca)))
            await until(lambda: bool(pair.failed))
            assert "does not trust the CA" in str(pair.failed[0])
            pair.failed.clear()
            end = await pair.call(client_context(TlsFiles(stranger.cert, stranger.key, files.ca)))
            lost = await asyncio.wait_for(end.lost, 10)
            assert "does not trust the CA of the certificate it was sent" in str(lost)
            await until(lambda: bool(pair.failed))
            assert "certificate is refused" in str(pair.failed[0])

    asyncio.run(scenario())


def test_old_versions_are_refused(files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            context = believing(files)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
            context.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.raises(TlsError):
                await pair.call(context)
            await until(lambda: bool(pair.failed))

    with pytest.warns(DeprecationWarning, match="TLSv1"):
        asyncio.run(scenario())


@pytest.mark.parametrize("run", RUNNERS)
def test_plain_client_gets_a_readable_answer(run: Runner, files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files, refusal=b"speak TLS here") as pair:
            for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16", b"\x16\x03\x01garbage that is no handshake" * 9):
                reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
                writer.write(sent)
                if sent.startswith(b"GET"):
                    assert await reader.read() == b"speak TLS here"
                writer.write_eof()
                async with asyncio.timeout(10):
                    await reader.read()
                writer.close()
            await until(lambda: len(pair.failed) == 3)
            assert isinstance(pair.failed[0], NotTlsError)
            assert not any(end.made.done() for end in pair.ends)

    run(scenario())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_server_that_speaks_no_tls_is_known_as_such(run: Runner, files: TlsFiles) -> None:
    async def scenario() -> None:
        done = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            done.set()

        pair = Pair(files)
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as pair.listener:
            with pytest.raises(NotTlsError, match="does not speak TLS"):
                await pair.call(believing(files))
            await asyncio.wait_for(done.wait(), 10)

    run(scenario())


def test_handshakes_that_hang_are_bounded_in_number_and_in_time(files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files, timeout_s=0.5, handshakes_max=20) as pair:
            hanging = [await asyncio.open_connection("127.0.0.1", pair.port) for _ in range(60)]
            await until(lambda: len(pair.ends) == 60)
            assert pair.entrance.under_way <= 20
            end = await pair.call(believing(files))
            assert (await end.made).get_extra_info("ssl_object").version() == "TLSv1.3", (
                "a connection that sends its handshake is accepted"
            )
            await until(lambda: not pair.entrance.under_way)
            for reader, writer in hanging:
                async with asyncio.timeout(10):
                    assert await reader.read() == b""
                writer.close()
            assert len(pair.failed) == 60
            (await end.made).abort()

    asyncio.run(scenario())


def test_connection_flood_does_not_displace_other_addresses(files: TlsFiles) -> None:
    async def scenario() -> None:
        async with Pair(files, handshakes_max=20) as pair:
            context = believing(files)
            end = End()
            loop = asyncio.get_running_loop()

            async def connect(protocol: asyncio.BaseProtocol) -> None:
                """Connect, and begin the handshake after others have come."""
                calling = socket.create_connection(("127.0.0.1", pair.port))
                await until(lambda: len(pair.ends) == 1)
                hanging.extend(
                    [
                        await asyncio.open_connection("127.0.0.1", pair.port, local_addr=("127.0.0.2", 0))
                        for _ in range(60)
                    ]
                )
                await until(lambda: len(pair.ends) == 61)
                await loop.create_connection(lambda: protocol, sock=calling)

            hanging: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            await open_stream(end, context, "127.0.0.1", timeout_s=10.0, connect=connect)
            await end.made
            assert pair.entrance.under_way <= 20
            for _, writer in hanging:
                writer.close()

    asyncio.run(scenario())


def test_a_connection_that_is_given_up_early_is_closed(files: TlsFiles) -> None:
    async def scenario() -> None:
        stream = TlsStream(believing(files), End(), timeout_s=5, shaken=lambda _: None, server_name="localhost")
        stream.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", await self_listening(stream))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        listeners.pop().close()

    listeners: list[asyncio.Server] = []

    async def self_listening(stream: TlsStream) -> int:
        listeners.append(await asyncio.get_running_loop().create_server(lambda: stream, "127.0.0.1", 0))
        return int(listeners[0].sockets[0].getsockname()[1])

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["", ".example", "a" * 70 + ".example"])
def test_invalid_host_name_is_reported(files: TlsFiles, host: str) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            with pytest.raises(TlsError, match="not a valid host name"):
                await pair.call(believing(files), host)

    asyncio.run(scenario())


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("paused", [False, True])
def test_a_protocol_that_fails_ends_its_connection(run: Runner, paused: bool, files: TlsFiles) -> None:
    class Failing(End):
        def buffer_updated(self, nbytes: int) -> None:
            raise ZeroDivisionError(nbytes)

    async def scenario() -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))
        async with Pair(files, make=Failing) as pair:
            end = await pair.call(believing(files))
            failing = await pair.ends[0].made
            if paused:
                failing.pause_reading()
            (await end.made).write(b"x")
            if paused:
                await asyncio.sleep(0.05)
                failing.resume_reading()
            await asyncio.wait_for(end.lost, 10)
            await asyncio.wait_for(pair.ends[0].lost, 10)
            assert any("ZeroDivisionError" in each for each in told)

    run(scenario())


def test_the_first_bytes_tell_tls_from_a_frame() -> None:
    assert begins_tls(b"\x16\x03\x01")
    assert not begins_tls(b"\x16\x03")
    assert not begins_tls(b"\x15\x03\x03")
    assert begins_tls(b"\x15\x03\x03", handshake=False)
    assert not begins_tls((0x0316).to_bytes(4, "little")), "a small frame of that length"


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("both", [False, True])
def test_key_updates_without_data_close_the_connection(
    run: Runner, both: bool, files: TlsFiles, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            client = await KeyChanger.connected(pair.port, believing(files), tmp_path / "keys")
            try:
                client.send(b"hello")
                client.change_keys(1000, both=both)  # 27 bytes each
                client.send(b"still here")
                assert await pair.ends[0].until(15) == b"hellostill here"
                client.change_keys(2 * BYTES_WITHOUT_DATA_MAX // 27, both=both)
                error = await asyncio.wait_for(pair.ends[0].lost, 10)
                assert isinstance(error, TlsError)
                assert "key updates" in str(error)
            finally:
                client.close()

    run(scenario())


def test_key_updates_with_a_little_data_are_accepted(files: TlsFiles, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair(files) as pair:
            client = await KeyChanger.connected(pair.port, believing(files), tmp_path / "keys")
            try:
                for _ in range(50):
                    client.change_keys(100, both=False)
                    client.send(bytes(100))
                for _ in range(5000):
                    client.send(b"x")
                await client.drain()
                assert len(await pair.ends[0].until(10_000)) == 10_000
            finally:
                client.close()

    asyncio.run(scenario())
