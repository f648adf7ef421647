from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.wire.one_way import (
    KINDS_WITH_BATCHES,
    ONE_WAY_KINDS,
    SINGLE_KINDS,
    LinkMessage,
    Outbox,
    OutgoingEnvelope,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    ENTRIES_PER_PEER_MESSAGE_MAX,
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    KIB,
    PEER_GROUP_BYTES,
)
from tidelog_proto.wire.frames import encode_frame


def key(number: int) -> tuple[bytes, int]:
    return bytes([number]) * 16, number


def append(number: int, base: int = 0) -> pb.AppendBatch:
    topic_id, partition = key(number)
    return pb.AppendBatch(topic_id=topic_id, partition=partition, base_offset=base)


def ack(number: int, end: int = 0) -> pb.ReplicationAck:
    topic_id, partition = key(number)
    return pb.ReplicationAck(topic_id=topic_id, partition=partition, end_offset=end)


def kinds(sent: list[OutgoingEnvelope]) -> list[str | None]:
    return [one.envelope.WhichOneof("kind") for one in sent]


def entries(sent: OutgoingEnvelope) -> list[LinkMessage]:
    kind = sent.envelope.WhichOneof("kind")
    assert kind is not None
    message = getattr(sent.envelope, kind)
    return [message] if kind in SINGLE_KINDS else list(message.entries)


def test_kinds_match_the_protocol() -> None:
    numbers = {field.name: field.number for field in pb.Envelope.DESCRIPTOR.fields}
    assert {numbers[kind] for kind in ONE_WAY_KINDS} == set(range(44, 57))
    for kind in ONE_WAY_KINDS:
        message = getattr(pb.Envelope(), kind)
        assert hasattr(message, "entries") == (kind not in SINGLE_KINDS)
        entry = message if kind in SINGLE_KINDS else message.entries.add()
        assert hasattr(entry, "length") == (kind in KINDS_WITH_BATCHES)


def test_partitions_share_an_envelope() -> None:
    box = Outbox()
    for number in range(100):
        box.put(append(number), [memoryview(b"x" * number)])
        box.put(ack(number), [])
    assert box
    sent = list(box.drain())
    assert kinds(sent) == ["append_batch", "replication_ack"]
    assert [one.entries for one in sent] == [100, 100]
    assert [entry.length for entry in sent[0].envelope.append_batch.entries] == list(range(100))
    assert sent[0].attachment_bytes == sum(range(100))
    assert b"".join(sent[0].attachment) == b"x" * sum(range(100))
    assert not box
    assert box.size_bytes == 0
    assert list(box.drain()) == []


def test_heartbeat_length_is_reset() -> None:
    box = Outbox()
    message = append(1)
    message.length = 99
    box.put(message, [])
    (sent,) = box.drain()
    assert sent.envelope.append_batch.entries[0].length == 0
    assert sent.attachment_bytes == 0


def test_messages_of_a_partition_keep_their_order_across_kinds() -> None:
    box = Outbox()
    box.put(append(1, 1), [])
    box.put(ack(2, 1), [])
    box.put(ack(1, 2), [])
    box.put(append(2, 3), [])  # after the acks, at the existing entry of its partition
    box.put(append(1, 4), [])
    assert kinds(list(box.drain())) == ["append_batch", "replication_ack", "append_batch"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, PEER_GROUP_BYTES)), max_size=60))
def test_order_is_kept_for_every_partition(puts: list[tuple[int, int, int]]) -> None:
    box = Outbox()
    asked: dict[int, list[int]] = {}
    for count, (partition, kind, size_bytes) in enumerate(puts):
        topic_id, _ = key(partition)
        asked.setdefault(partition, []).append(count)
        if kind == 0:
            data = memoryview(bytes(size_bytes))
            box.put(pb.AppendBatch(topic_id=topic_id, partition=partition, epoch=count), [data])
        elif kind == 1:
            box.put(pb.ReplicationAck(topic_id=topic_id, partition=partition, epoch=count), [])
        else:
            box.put(pb.Seal(topic_id=topic_id, partition=partition, epoch=count), [])
    got: dict[int, list[int]] = {}
    for sent in box.drain():
        for entry in entries(sent):
            assert not isinstance(entry, pb.MetadataUpdate)
            got.setdefault(entry.partition, []).append(entry.epoch)
        assert sent.attachment_bytes == sum(map(len, sent.attachment))
    assert got == asked


def test_only_small_batches_share_an_envelope() -> None:
    box = Outbox()
    for number in range(4):
        box.put(append(number), [memoryview(bytes(100 * KIB))])
    box.put(append(5), [memoryview(bytes(4 * PEER_GROUP_BYTES))])
    box.put(append(6), [memoryview(b"small")])
    assert [one.entries for one in box.drain()] == [2, 2, 1, 1]


def test_number_of_entries_is_limited() -> None:
    box = Outbox()
    for number in range(ENTRIES_PER_PEER_MESSAGE_MAX + 1):
        box.put(pb.PreVote(topic_id=b"t" * 16, partition=number), [])
    assert [one.entries for one in box.drain()] == [ENTRIES_PER_PEER_MESSAGE_MAX, 1]


def test_envelope_size_is_limited() -> None:
    box = Outbox()
    value = bytes(ENVELOPE_BYTES_MAX // 3)
    for number in range(4):
        box.put(pb.OpenEpoch(topic_id=b"t" * 16, partition=number, value=value), [])
    box.put(pb.BackfillReply(topic_id=b"t" * 16, producers=bytes(ENVELOPE_BYTES_MAX - 200)), [])
    sent = list(box.drain())
    assert [one.entries for one in sent] == [1, 1, 1, 1, 1]
    for one in sent:
        encode_frame(one.envelope, one.attachment_bytes)


def test_message_that_does_not_fit_in_a_frame_is_refused() -> None:
    box = Outbox()
    with pytest.raises(ProtocolError, match="a message 'backfill_reply' has"):
        box.put(pb.BackfillReply(producers=bytes(ENVELOPE_BYTES_MAX)), [])
    with pytest.raises(ProtocolError, match="its batches have 67108864 bytes"):
        box.put(append(1), [memoryview(bytes(FRAME_BYTES_MAX))])
    with pytest.raises(AssertionError, match="has no batches"):
        box.put(pb.ReplicationAck(), [memoryview(b"x")])
    assert not box
