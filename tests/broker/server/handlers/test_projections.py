"""FETCH with projections, from ring and log."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.broker.metric import value_of
from tests.broker.peer import Peer, batches_of
from tests.broker.stand import Stand

from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import HEADER_BYTES

VALUE = os.urandom(100_000)


@pytest.fixture(params=[0, 1 << 24], ids=["from the log", "from memory"])
async def node(stand: Stand, request: pytest.FixtureRequest) -> Node:
    return await stand.start(ring_bytes=request.param)


@pytest.fixture
async def topic_id(peer: Peer) -> bytes:
    """Five batches of two large records, a second apart."""
    topic = await peer.create()
    for second in range(5):
        columns = columns_of([VALUE, VALUE], keys=[b"a", b"b"], tags=["red", None])
        await peer.publish(topic.topic_id, encode_batch(columns, now_us=second * 1_000_000).to_bytes())
    return topic.topic_id


async def fetched(
    peer: Peer, topic_id: bytes, projection: pb.Projection, offset: int = 0, key: bytes | None = None, **bounds: Any
) -> tuple[pb.FetchResult, list[RecordBatch], int]:
    entry = pb.FetchEntry(topic_id=topic_id, offset=offset, projection=projection)
    if key is not None:
        entry.filter.key = key
    frame = await peer.ask(fetch=pb.Fetch(entries=[entry], **bounds))
    (result,) = frame.envelope.fetch_reply.results
    assert not result.HasField("error"), result.error
    assert result.length == len(frame.attachment)
    return result, batches_of(frame), len(frame.attachment)


async def test_unwanted_columns_are_not_sent(node: Node, peer: Peer, topic_id: bytes) -> None:
    before = value_of(node, "tidelog_bytes_out_total")
    result, batches, _ = await fetched(peer, topic_id, pb.Projection(columns=Flags.KEY | Flags.TAG))
    assert [batch.keys() for batch in batches] == [[b"a", b"b"]] * 5
    assert [batch.tags() for batch in batches] == [["red", None]] * 5
    assert result.next_offset == 10
    assert value_of(node, "tidelog_bytes_out_total") - before < 5 * 1024 < len(VALUE)
    result, batches, size_bytes = await fetched(peer, topic_id, pb.Projection(), offset=3)
    assert size_bytes == 4 * HEADER_BYTES
    assert [batch.slice_from(3).offset_list() for batch in batches] == [range(3, 4), *map(range, (4, 6, 8), (6, 8, 10))]


async def test_projection_of_an_unset_column_sends_the_batch_unchanged(peer: Peer, topic_id: bytes) -> None:
    _, batches, _ = await fetched(peer, topic_id, pb.Projection(columns=2**32 - 1))
    assert [batch.values() for batch in batches] == [[VALUE, VALUE]] * 5
    assert not batches[0].header.flags & Flags.PROJECTED


async def test_unwanted_times_are_not_sent(peer: Peer, topic_id: bytes) -> None:
    wanted = pb.Projection(columns=Flags.KEY, from_us=1_000_000, until_us=2_000_001)
    result, batches, _ = await fetched(peer, topic_id, wanted)
    assert [batch.base_offset for batch in batches] == [2, 4]
    assert result.next_offset == 10
    result, batches, _ = await fetched(peer, topic_id, pb.Projection(columns=Flags.KEY, from_us=10**9))
    assert (batches, result.next_offset) == ([], 10)
    result, batches, _ = await fetched(
        peer, topic_id, pb.Projection(columns=Flags.KEY, from_us=4_000_000), max_bytes=1, min_bytes=1, wait_ms=20_000
    )
    assert [batch.base_offset for batch in batches] == [8], "it looks on until it finds something"
    assert result.next_offset == 10


async def test_projection_with_a_key_filter(peer: Peer, topic_id: bytes) -> None:
    result, batches, size_bytes = await fetched(peer, topic_id, pb.Projection(), key=b"b")
    assert [batch.offset_list() for batch in batches] == [[1], [3], [5], [7], [9]]
    assert result.next_offset == 10
    assert size_bytes < len(VALUE)


async def test_projection_ends_at_the_range_end(peer: Peer, topic_id: bytes) -> None:
    for columns in (0, 31):
        result, batches, _ = await fetched(peer, topic_id, pb.Projection(columns=columns, end_offset=5), offset=1)
        assert [batch.base_offset for batch in batches] == [0, 2, 4]
        assert result.next_offset == 6
