"""Events that a node pushes to a subscription, parsed without protobuf where they arrive alone.

A MESSAGE_EVENT for a small batch is the most frequent message of an idle reader. protobuf parses and reads it in a few
microseconds if its code is in the processor's caches, and otherwise, as for occasional events, in some 40 µs.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import FRAME_PREFIX_BYTES, HEADER_BYTES


class PushedEvent(NamedTuple):
    """A MESSAGE_EVENT with its attachment; the fields are those of the protobuf message."""

    subscription_id: int
    topic_id: bytes
    partition: int
    record_count: int
    high_watermark: int
    next_offset: int
    attachment: memoryview


_HEAD: Final = struct.Struct("<IIBB")
"""Prefix of a frame, tag of the envelope's first field, and length of that field if it is below 128."""
_FIELDS_AT: Final = _HEAD.size
_ENVELOPE_TAG: Final = pb.Envelope.MESSAGE_EVENT_FIELD_NUMBER << 3 | 2
_TOPIC_TAG: Final = pb.MessageEvent.TOPIC_ID_FIELD_NUMBER << 3 | 2
_TAG_MAX: Final = pb.MessageEvent.NEXT_OFFSET_FIELD_NUMBER << 3
_TOPIC_ID_BYTES: Final = 16
_SHIFT_MAX: Final = 56
"""Largest shift of a varint's byte: a varint has at most 9 bytes, so its value is below 2**63."""
_U32_BITS: Final = 32
_made: Final = tuple.__new__

_EVENT_BYTES_MIN: Final = _FIELDS_AT + HEADER_BYTES
"""Minimum size of a frame for the fast path. At least a batch header follows the event, so parsing a truncated field
reads header bytes and never past the frame."""


def pushed_event(scratch: memoryview, size_bytes: int) -> PushedEvent | None:
    """Return the event of a frame; None if the frame contains anything but a common event: then use protobuf.

    Fast path in one call, for an envelope with nothing but the event, and an event whose fields are in ascending order.

    Args:
        scratch: begins with the frame.
        size_bytes: number of received bytes.
    """
    if size_bytes < _EVENT_BYTES_MIN:
        return None
    frame_bytes, envelope_bytes, envelope_tag, event_bytes = _HEAD.unpack_from(scratch)
    end = _FIELDS_AT + event_bytes
    if (
        envelope_tag != _ENVELOPE_TAG
        or FRAME_PREFIX_BYTES + envelope_bytes != end
        or frame_bytes + 4 != size_bytes
        or event_bytes >= 0x80
        or end + HEADER_BYTES > size_bytes
    ):
        return None
    data = bytes(scratch[:size_bytes])
    at, last, topic_id = _FIELDS_AT, 0, b""
    values = [0, 0, 0, 0, 0, 0, 0]
    while at < end:
        tag = data[at]
        if not last < tag <= _TAG_MAX:
            return None
        last = tag
        value = shift = 0
        while True:
            at += 1
            byte = data[at]
            if byte < 0x80:
                break
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > _SHIFT_MAX:
                return None
        value |= byte << shift
        at += 1
        if tag == _TOPIC_TAG:
            if value != _TOPIC_ID_BYTES:
                return None
            topic_id = data[at : at + _TOPIC_ID_BYTES]
            at += _TOPIC_ID_BYTES
        elif tag & 7:
            return None
        else:
            values[tag >> 3] = value
    _, subscription_id, _, partition, records, high_watermark, next_offset = values
    if at != end or (partition | records) >> _U32_BITS:
        return None
    attachment = memoryview(data)[end:]
    event = (subscription_id, topic_id, partition, records, high_watermark, next_offset, attachment)
    return _made(PushedEvent, event)


def event_of(event: pb.MessageEvent, attachment: memoryview) -> PushedEvent:
    """Return the event that protobuf has parsed."""
    return PushedEvent(
        event.subscription_id,
        event.topic_id,
        event.partition,
        event.record_count,
        event.high_watermark,
        event.next_offset,
        attachment,
    )
