"""The fast path of pushed events returns what protobuf returns, or leaves the frame to protobuf."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import FRAME_PREFIX_BYTES, HEADER_BYTES
from tidelog_proto.wire.frame_receiver import FrameReceiver
from tidelog_proto.wire.frames import encode_frame
from tidelog_proto.wire.pushed_events import PushedEvent, event_of

TOPIC = bytes(range(16))
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
EVENTS = st.builds(
    pb.MessageEvent,
    subscription_id=U64,
    topic_id=st.just(TOPIC) | st.binary(max_size=20),
    partition=U32,
    record_count=U32,
    high_watermark=U64,
    next_offset=U64,
)


def received(data: bytes) -> PushedEvent | None:
    receiver = FrameReceiver(frame_bytes_max=1 << 20)
    receiver.buffer()[: len(data)] = data
    return receiver.event(len(data))


@given(event=EVENTS, attachment_bytes=st.integers(HEADER_BYTES, 600))
@example(pb.MessageEvent(subscription_id=1, topic_id=TOPIC, record_count=10, next_offset=2**40), 300)
def test_event_is_that_of_protobuf(event: pb.MessageEvent, attachment_bytes: int) -> None:
    attachment = bytes(number & 0xFF for number in range(attachment_bytes))
    found = received(encode_frame(pb.Envelope(message_event=event), len(attachment)) + attachment)
    large = max(event.subscription_id, event.high_watermark, event.next_offset) >= 2**63
    if len(event.topic_id) not in {0, 16} or large:
        assert found is None
    else:
        assert found == event_of(event, memoryview(attachment))


@given(event=EVENTS, place=st.integers(0, 60), byte=st.integers(0, 255))
def test_damaged_envelope_is_read_as_protobuf_reads_it(event: pb.MessageEvent, place: int, byte: int) -> None:
    attachment = bytes(HEADER_BYTES)
    envelope = bytearray(pb.Envelope(message_event=event).SerializeToString())
    envelope[place % len(envelope)] = byte
    head = encode_frame(pb.Envelope(message_event=event), len(attachment))[:FRAME_PREFIX_BYTES]
    found = received(head + bytes(envelope) + attachment)
    if found is not None:
        parsed = pb.Envelope.FromString(bytes(envelope))
        assert parsed.WhichOneof("kind") == "message_event"
        assert not parsed.correlation_id
        assert not parsed.throttle_ms
        assert found == event_of(parsed.message_event, memoryview(attachment))


def test_other_frames_are_left_to_protobuf() -> None:
    event = pb.MessageEvent(subscription_id=1, topic_id=TOPIC)
    attachment = bytes(HEADER_BYTES)
    good = encode_frame(pb.Envelope(message_event=event), len(attachment)) + attachment
    assert received(good) is not None
    for envelope in (
        pb.Envelope(message_event=event, throttle_ms=3),
        pb.Envelope(message_event=event, correlation_id=3),
        pb.Envelope(subscription_ended=pb.SubscriptionEnded(subscription_id=1, topic_id=TOPIC)),
    ):
        assert received(encode_frame(envelope, len(attachment)) + attachment) is None
    assert received(good[:-1]) is None
    assert received(good + good) is None
    assert received(encode_frame(pb.Envelope(message_event=event), 10) + bytes(10)) is None
