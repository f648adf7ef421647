"""The translator writes the frames that the gateway writes."""

from __future__ import annotations

import pytest

from tidelog_gateway.feed.ring import RingEntry
from tidelog_gateway.feed.whole_batch import whole_batch
from tidelog_gateway.subscriptions.message_sender import FrameEncoder
from tidelog_loadtest.gateway.bare_broadcast import TOKEN, Translator
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import MIB
from tidelog_proto.wire.frames import encode_frame


def batch_at(base_offset: int, values: list[bytes]) -> bytes:
    batch = bytearray(encode_batch(columns_of(values), now_us=1_700_000_000_123_456).to_bytes())
    stamp_owner(batch, base_offset=base_offset, append_timestamp_us=1, epoch=1, owner_incarnation=1, previous_digest=0)
    return bytes(batch)


def pushed(partition: int, batch: bytes) -> bytes:
    event = pb.MessageEvent(subscription_id=1, topic_id=bytes(16), partition=partition)
    return encode_frame(pb.Envelope(message_event=event), len(batch)) + batch


def frame_of(partition: int, batch: bytes) -> bytes:
    records = whole_batch(RecordBatch.parse(batch), MIB)
    assert records is not None
    next_offset = RecordBatch.parse(batch).end_offset
    entry = RingEntry(partition, 0, next_offset, records.records, records.payload_bytes, records.data)
    return FrameEncoder(1).encode(entry, TOKEN.decode())


@pytest.mark.parametrize("cut_bytes", [1, 100, MIB])
def test_frames_equal_those_of_the_gateway_however_the_batches_are_cut(cut_bytes: int) -> None:
    batches = [batch_at(7, [b"one", b"two"]), batch_at(9, [b"x" * 70_000])]
    data = b"".join(pushed(number, batch) for number, batch in enumerate(batches))
    frames: list[bytes] = []
    translator = Translator(frames.append)
    for at in range(0, min(len(data), 600), cut_bytes):
        translator.data_received(data[at : min(at + cut_bytes, 600)])
    translator.data_received(data[600:])
    assert frames == [frame_of(number, batch) for number, batch in enumerate(batches)]


def test_a_damaged_batch_is_refused() -> None:
    batch = bytearray(batch_at(0, [b"value"]))
    batch[-1] ^= 1
    with pytest.raises(ValueError, match="CRC32C"):
        Translator(lambda _: None).data_received(pushed(0, bytes(batch)))
