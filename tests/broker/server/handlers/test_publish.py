from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import encoded

from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import publish as publish_module
from tidelog_broker.server.handlers.publish import DROPPED_BYTES_MAX, PublishInProgress
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.compression import encode_body
from tidelog_proto.batch.header import Codec, Flags, flags_with_codec, unpack_header
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.limits import BATCH_UNCOMPRESSED_BYTES_MAX, HEADER_BYTES, KIB, MIB
from tidelog_proto.schema.data_types import INT32
from tidelog_proto.schema.fields import Field


def changed(data: bytes, body: bytes | None = None, **fields: int) -> bytes:
    """Return a batch with another body or header fields, its CRCs made to match."""
    body = data[HEADER_BYTES:] if body is None else body
    fixed = {"body_length": len(body), "body_crc": crc32c(body), **fields}
    return replaced(data, fixed) + body


def replaced(data: bytes, fields: dict[str, int]) -> bytes:
    return unpack_header(data)._replace(**fields).pack()  # type: ignore[arg-type]  # every field given is an int


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 0x40
    return bytes(damaged)


def bomb() -> bytes:
    """Return a batch that says 64 MiB at most and would become 128 MiB."""
    huge = columns_of([bytes(2 * BATCH_UNCOMPRESSED_BYTES_MAX)])
    body, _ = encode_body(huge, Codec.ZSTD)
    flags = flags_with_codec(int(Flags.VALUE), Codec.ZSTD)
    return changed(batch(b""), bytes(body), flags=flags, uncompressed_length=BATCH_UNCOMPRESSED_BYTES_MAX)


def corrupt_arrow() -> bytes:
    good = batch(b"x" * 64, b"y" * 64)
    body = bytearray(good[HEADER_BYTES:])
    body[8:40] = b"\xff" * 32
    return changed(good, bytes(body))


BAD_BATCHES: dict[str, Callable[[], bytes]] = {
    "wrong body CRC": lambda: flipped(batch(b"x" * 50), HEADER_BYTES + 60),
    "wrong header CRC": lambda: flipped(batch(b"x"), 126),
    "wrong magic": lambda: flipped(batch(b"x"), 0),
    "wrong count": lambda: changed(batch(b"x"), record_count=2, last_offset_delta=1),
    "corrupt Arrow body": corrupt_arrow,
    "body cut short": lambda: changed(batch(b"x" * 100), batch(b"x" * 100)[HEADER_BYTES:-64]),
    "a bomb": bomb,
    "shorter than a header": lambda: batch(b"x")[:100],
    "nothing": lambda: b"",
    "bytes behind the batch": lambda: batch(b"x") + bytes(64),
    "control": lambda: batch(b"x", control=True),
    "transactional": lambda: changed(batch(b"x"), flags=int(Flags.VALUE) | int(Flags.TRANSACTIONAL)),
}


@pytest.mark.parametrize("make", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
async def test_invalid_batch_is_refused_alone(node: Node, peer: Peer, make: Callable[[], bytes]) -> None:
    topic = await peer.create()
    first, bad, last = await peer.publish(topic.topic_id, batch(b"first"), make(), batch(b"last"))
    assert bad.error.code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH, pb.BATCH_TOO_LARGE}
    assert bad.error.definite
    assert not bad.error.retriable
    assert [first.base_offset, last.base_offset] == [0, 1]
    assert await peer.read_all(topic.topic_id) == [b"first", b"last"]
    assert counted(node.broker.metrics.batches_refused) == 1


async def test_typed_batch_for_an_untyped_topic_is_refused(node: Node, peer: Peer) -> None:
    schema = schema_of(Field(0, "n", INT32))
    typed = encoded(row_layout(schema), pa.RecordBatch.from_pydict({"n": [1, 2]}))
    topic = await peer.create()
    first, bad, last = await peer.publish(topic.topic_id, batch(b"first"), typed, batch(b"last"))
    assert (bad.error.code, bad.error.definite) == (pb.SCHEMA_MISMATCH, True)
    assert "topic 't' is not typed, and the batch has a schema" in bad.error.message
    assert [first.base_offset, last.base_offset] == [0, 1]
    assert await peer.read_all(topic.topic_id) == [b"first", b"last"]
    assert counted(node.broker.metrics.batches_refused) == 1


async def test_invalid_large_batch_is_refused_by_the_worker(peer: Peer) -> None:
    topic = await peer.create()
    large = batch(os.urandom(3 * MIB), codec=Codec.ZSTD)
    bad, good = await peer.publish(topic.topic_id, flipped(large, 2 * MIB), large)
    assert bad.error.code == pb.CORRUPT_BATCH
    assert (good.base_offset, good.HasField("error")) == (0, False)


async def test_entries_without_a_partition_are_refused_individually(peer: Peer) -> None:
    topic = await peer.create(partitions=2)
    targets = [
        (topic.topic_id, 2, pb.UNKNOWN_PARTITION),
        (topic.topic_id, 2**32 - 1, pb.UNKNOWN_PARTITION),
        (b"\x07" * 16, 0, pb.UNKNOWN_TOPIC),
        (b"", 0, pb.UNKNOWN_TOPIC),
        (META_TOPIC_ID, 0, pb.FORBIDDEN),
        (OFFSETS_TOPIC_ID, 0, pb.FORBIDDEN),
        (topic.topic_id, 1, 0),
    ]
    data = batch(b"x")
    entries = [pb.PublishEntry(topic_id=name, partition=index, length=len(data)) for name, index, _ in targets]
    frame = await peer.ask(data * len(entries), publish=pb.Publish(entries=entries))
    assert [result.error.code for result in frame.envelope.publish_reply.results] == [code for _, _, code in targets]
    assert await peer.read_all(topic.topic_id, partition=1) == [b"x"]


@pytest.mark.parametrize("lengths", [[], [1], [10, 10], [2**32 - 1]])
async def test_inconsistent_lengths_refuse_the_request(peer: Peer, lengths: list[int]) -> None:
    topic = await peer.create()
    entries = [pb.PublishEntry(topic_id=topic.topic_id, length=length) for length in lengths]
    error = await peer.refused(batch(b"x"), publish=pb.Publish(entries=entries))
    assert error.code in {pb.MALFORMED_FRAME, pb.INVALID_REQUEST}
    assert await peer.read_all(topic.topic_id) == []


async def test_too_many_batches_refuse_the_request(peer: Peer) -> None:
    assert (await peer.refused(publish=pb.Publish(entries=[pb.PublishEntry()] * 1025))).code == pb.INVALID_REQUEST


async def test_retry_gets_the_first_offset_and_is_stored_once(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    data = [batch(b"a", b"b", producer_id=5, sequence=0), batch(b"c", producer_id=5, sequence=2)]
    first = await peer.publish(topic.topic_id, *data)
    again = await peer.publish(topic.topic_id, *data)
    assert [result.base_offset for result in again] == [result.base_offset for result in first] == [0, 2]
    assert [result.duplicate for result in first + again] == [False, False, True, True]
    assert [result.append_timestamp_us for result in again] == [result.append_timestamp_us for result in first]
    assert await peer.read_all(topic.topic_id) == [b"a", b"b", b"c"]
    assert counted(node.broker.metrics.duplicates) == 2


async def test_retry_in_the_same_request_is_stored_once(peer: Peer) -> None:
    topic = await peer.create()
    data = batch(b"a", producer_id=5)
    first, again = await peer.publish(topic.topic_id, data, data)
    assert (first.duplicate, again.duplicate, again.base_offset) == (False, True, 0)
    assert await peer.read_all(topic.topic_id) == [b"a"]


async def test_sequence_gap_is_refused_until_filled(peer: Peer) -> None:
    topic = await peer.create()
    late = batch(b"late", producer_id=5, sequence=1)
    unknown = (await peer.publish(topic.topic_id, late))[0].error
    assert unknown.code == pb.UNKNOWN_PRODUCER
    await peer.publish(topic.topic_id, batch(b"0", producer_id=5))
    gap = (await peer.publish(topic.topic_id, batch(b"far", producer_id=5, sequence=3)))[0].error
    assert (gap.code, gap.retriable, gap.definite) == (pb.SEQUENCE_GAP, True, True)
    assert (await peer.publish(topic.topic_id, late))[0].base_offset == 1


async def test_large_batch_keeps_its_order(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The large one is verified on a worker, which is held until the small one has arrived."""
    topic = await peer.create()
    arrived = threading.Event()

    def slow(data: memoryview) -> object:
        if len(data) > MIB:
            assert arrived.wait(20)
        return verify_batch(data)

    monkeypatch.setattr(publish_module, "verify_batch", slow)
    large = os.urandom(3 * MIB)
    numbers = [
        peer.post_publish(topic.topic_id, batch(large, codec=Codec.ZSTD)),
        peer.post_publish(topic.topic_id, batch(b"small")),
    ]
    queue = node.broker.partitions.get(topic.topic_id, 0).pipeline._queue
    await settled(lambda: len(queue) == 2, "the small batch did not arrive")
    arrived.set()
    assert [(await peer.published(number))[0].base_offset for number in numbers] == [0, 1]
    assert await peer.read_all(topic.topic_id) == [large, b"small"]


async def test_full_queue_refuses_and_recovers(stand: Stand) -> None:
    await stand.start(partition_in_flight_bytes=500_000)
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"warm"))
    stand.disk.hold("sync")
    numbers = [peer.post_publish(topic.topic_id, batch(bytes([index]) * 200_000)) for index in range(8)]
    await stand.disk.held_up()
    refused = (await peer.published(numbers[-1]))[0].error
    assert (refused.code, refused.retriable, refused.definite) == (pb.OVERLOADED, True, True)
    assert refused.retry_after_ms > 0
    stand.disk.heal()
    results = [(await peer.published(number))[0] for number in numbers]
    stored = [result for result in results if not result.HasField("error")]
    assert 3 <= len(stored) < 8
    assert len(await peer.read_all(topic.topic_id)) == 1 + len(stored)


async def test_timeout_leaves_the_outcome_unknown_and_a_retry_finds_it(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"0", producer_id=5))
    stand.disk.hold("sync")
    data = batch(b"1", producer_id=5, sequence=1)
    (late,) = await peer.published(peer.post_publish(topic.topic_id, data, timeout_ms=20))
    assert (late.error.code, late.error.definite) == (pb.TIMED_OUT, False)
    assert node.server.budget.used_bytes == 0
    stand.disk.heal()
    (again,) = await peer.publish(topic.topic_id, data)
    assert (again.duplicate, again.base_offset) == (True, 1)


async def test_batches_of_a_disconnected_client_are_stored_and_released(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    other = await stand.peer()
    stand.disk.hold("sync")
    other.post_publish(topic.topic_id, batch(b"bye" * 1000))
    await stand.disk.held_up()
    await other.close()
    stand.disk.heal()
    await settled(lambda: node.server.budget.used_bytes == 0, "the share was not given back")
    assert await peer.read_all(topic.topic_id) == [b"bye" * 1000]


async def test_every_codec_and_column_round_trips(peer: Peer) -> None:
    topic = await peer.create()
    for codec in Codec:
        await peer.publish(topic.topic_id, batch(b"x" * 100, None, b"", codec=codec, timestamps_us=[3, 1, 2]))
    found = await peer.fetch(topic.topic_id)
    assert len(found) == len(Codec)
    for one in found:
        assert one.values() == [b"x" * 100, None, b""]
        assert one.timestamps_us() == [3, 1, 2]
        assert isinstance(one.columns(), pa.RecordBatch)


def test_bitmaps_of_forwarded_batches_fit_the_answer() -> None:
    """Each owner limits its own bitmaps only; the number of dropped records is complete in any case."""
    answers: list[pb.Envelope] = []
    bitmap, count = bytes(8 * KIB), 2 * DROPPED_BYTES_MAX // (8 * KIB)
    request: Any = SimpleNamespace(envelope=pb.Envelope(publish=pb.Publish()), reply=answers.append)
    broker: Any = None
    progress = PublishInProgress(broker, request, [memoryview(b"")] * count)
    progress.settle(0, PlacedBatch(0, 1, 0, 1, 1, 1, duplicates=7, dropped=bitmap), False)
    for index in range(1, count):
        progress.settle_forwarded(index, pb.PublishResult(epoch=1, duplicates=7, dropped=bitmap))
    [answer] = answers
    results = answer.publish_reply.results
    assert [result.duplicates for result in results] == [7] * count
    assert [len(result.dropped) for result in results] == [len(bitmap)] * (count // 2) + [0] * (count // 2)
