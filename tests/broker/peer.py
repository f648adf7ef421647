"""A client that speaks the protocol word by word, wrongly if a test wants so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, iter_batches
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.wire.frames import Frame, FrameDecoder, encode_frame

REPLY_TIMEOUT_S = 20
NOW_US = 1_700_000_000_000_000


def batch(
    *values: bytes | None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    sequence: int = 0,
    timestamps_us: Sequence[int] | None = None,
    control: bool = False,
) -> bytes:
    """Return a record batch as a producer sends it."""
    columns = columns_of(list(values), timestamps_us=list(timestamps_us) if timestamps_us is not None else None)
    return encode_batch(
        columns, now_us=NOW_US, codec=codec, producer_id=producer_id, base_sequence=sequence, control=control
    ).to_bytes()


class Peer:
    """One connection. Replies are awaited by correlation id; other messages are in `events`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.events: asyncio.Queue[Frame] = asyncio.Queue()
        self.order: list[int] = []
        """Correlation ids in the order in which frames came."""
        self.ended = asyncio.Event()
        self._replies: dict[int, asyncio.Future[Frame]] = {}
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, port: int, *, reading: bool = True) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = cls(reader, writer)
        if reading:
            peer.start_reading()
        return peer

    def start_reading(self) -> None:
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        decoder = FrameDecoder()
        try:
            while data := await self.reader.read(1 << 20):
                for frame in decoder.feed(data):
                    self._take(frame)
        except ConnectionError:
            pass  # as good as an end of the stream: the node has closed with bytes of ours unread
        finally:
            self.ended.set()
            for future in self._replies.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the node has closed the connection"))
                    future.exception()

    def _take(self, frame: Frame) -> None:
        number = frame.envelope.correlation_id
        self.order.append(number)
        if number == 0:
            self.events.put_nowait(frame)
        else:
            future = self._replies[number]
            assert not future.done(), f"request {number} was answered twice"
            future.set_result(frame)

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def expect(self) -> int:
        """Return a new correlation id whose answer can be awaited."""
        number = next(self._numbers)
        self._replies[number] = asyncio.get_running_loop().create_future()
        return number

    def post(self, attachment: bytes = b"", **kind: Any) -> int:
        """Send a request without waiting; return its correlation id."""
        number = self.expect()
        self.send_raw(encode_frame(pb.Envelope(correlation_id=number, **kind), len(attachment)) + attachment)
        return number

    async def reply(self, number: int) -> Frame:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await asyncio.shield(self._replies[number])

    def answered(self, number: int) -> bool:
        return self._replies[number].done()

    async def ask(self, attachment: bytes = b"", **kind: Any) -> Frame:
        """Send a request and return its answer."""
        return await self.reply(self.post(attachment, **kind))

    async def refused(self, attachment: bytes = b"", **kind: Any) -> pb.Error:
        """Send a request that must be refused as a whole; return the error."""
        envelope = (await self.ask(attachment, **kind)).envelope
        assert envelope.WhichOneof("kind") == "error", envelope
        return envelope.error

    async def event(self) -> Frame:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await self.events.get()

    async def closed(self) -> None:
        """Wait until the node has closed the connection."""
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await self.ended.wait()

    async def close(self) -> None:
        self.writer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(ConnectionError):  # a connection that broke is closed, too
            await self.writer.wait_closed()

    # common requests ------------------------------------------------------------------------------------

    async def greet(self, client_id: str = "peer", *, api_key: str = "") -> pb.HelloReply:
        hello = pb.Hello(version=PROTOCOL_VERSION, client_id=client_id, software="test-peer/9.8")
        if api_key:
            hello.credentials.api_key = api_key
        return (await self.ask(hello=hello)).envelope.hello_reply

    async def create(self, name: str = "t", **config: Any) -> pb.TopicInfo:
        envelope = (await self.ask(topic_create=pb.TopicCreate(name=name, config=pb.TopicConfig(**config)))).envelope
        assert envelope.WhichOneof("kind") == "topic_reply", envelope
        return envelope.topic_reply.topics[0]

    def post_publish(self, topic_id: bytes, *batches: bytes, partition: int = 0, timeout_ms: int = 0) -> int:
        entries = [pb.PublishEntry(topic_id=topic_id, partition=partition, length=len(one)) for one in batches]
        return self.post(b"".join(batches), publish=pb.Publish(entries=entries, timeout_ms=timeout_ms))

    async def publish(self, topic_id: bytes, *batches: bytes, partition: int = 0) -> list[pb.PublishResult]:
        return await self.published(self.post_publish(topic_id, *batches, partition=partition))

    async def published(self, number: int) -> list[pb.PublishResult]:
        envelope = (await self.reply(number)).envelope
        assert envelope.WhichOneof("kind") == "publish_reply", envelope
        return list(envelope.publish_reply.results)

    def post_fetch(self, topic_id: bytes, offset: int = 0, *, partition: int = 0, **bounds: int) -> int:
        entry = pb.FetchEntry(topic_id=topic_id, partition=partition, offset=offset)
        return self.post(fetch=pb.Fetch(entries=[entry], **bounds))

    async def fetch(self, topic_id: bytes, offset: int = 0, *, partition: int = 0, **bounds: int) -> list[RecordBatch]:
        frame = await self.reply(self.post_fetch(topic_id, offset, partition=partition, **bounds))
        assert frame.envelope.WhichOneof("kind") == "fetch_reply", frame.envelope
        (result,) = frame.envelope.fetch_reply.results
        assert not result.HasField("error"), result.error
        assert result.length == len(frame.attachment)
        return batches_of(frame)

    async def read_all(self, topic_id: bytes, *, partition: int = 0) -> list[bytes | None]:
        """Return every value of a partition, checking that offsets have no holes."""
        values: list[bytes | None] = []
        while True:
            found = await self.fetch(topic_id, len(values), partition=partition)
            if not found:
                return values
            for one in found:
                assert one.base_offset == len(values)
                values += one.values()

    def send_credit(self, subscription_id: int, *, records: int, size_bytes: int) -> None:
        credit = pb.Credit(subscription_id=subscription_id, records=records, bytes=size_bytes)
        self.send_raw(encode_frame(pb.Envelope(credit=credit)))

    async def delete(self, name: str) -> None:
        await self.ask(topic_delete=pb.TopicDelete(name=name))


def batches_of(frame: Frame) -> list[RecordBatch]:
    """Return the batches of an attachment, each checked against its CRCs."""
    return [RecordBatch.parse(view) for view in iter_batches(frame.attachment)]


@asynccontextmanager
async def connected(port: int, *, greet: bool = True, reading: bool = True) -> AsyncIterator[Peer]:
    """Connect, greet unless told not to, and close in the end."""
    peer = await Peer.connect(port, reading=reading)
    try:
        if greet and reading:
            await peer.greet()
        yield peer
    finally:
        await peer.close()
