from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_HELLO,
    FRAME_PREFIX_BYTES,
)
from tidelog_proto.wire.frames import (
    Frame,
    FrameDecoder,
    Prefix,
    encode_frame,
    parse_envelope,
    parse_prefix,
    split_attachment,
)


def envelope_of(correlation_id: int, text: str = "") -> pb.Envelope:
    return pb.Envelope(correlation_id=correlation_id, hello=pb.Hello(client_id=text, version=1))


@pytest.mark.parametrize(
    ("start", "told"),
    [(b"HTTP/1.1 400 Bad Request", "port of a gateway"), (b"GET / HTTP/1.1", "native"), (b"POST /v1", "native")],
)
@pytest.mark.parametrize("frame_bytes_max", [FRAME_BYTES_MAX_BEFORE_HELLO, FRAME_BYTES_MAX])
def test_http_at_the_wrong_port_is_called_that(start: bytes, told: str, frame_bytes_max: int) -> None:
    with pytest.raises(ProtocolError, match=told) as refused:
        parse_prefix(start, frame_bytes_max=frame_bytes_max)
    assert refused.value.code == pb.MALFORMED_FRAME


messages = st.lists(
    st.tuples(st.builds(envelope_of, st.integers(1, 2**64 - 1), st.text(max_size=20)), st.binary(max_size=60)),
    max_size=5,
)


@given(messages=messages, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_frames_come_out_however_the_stream_is_cut(messages: list[tuple[pb.Envelope, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(envelope, len(attachment)) + attachment for envelope, attachment in messages)
    decoder = FrameDecoder()
    frames: list[Frame] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        frames += decoder.feed(stream[at : at + size])
        at += size
        turn += 1
    assert [(frame.envelope, bytes(frame.attachment)) for frame in frames] == messages


def test_a_frame_is_not_given_out_before_its_last_byte() -> None:
    frame = encode_frame(envelope_of(7), 5) + b"12345"
    decoder = FrameDecoder()
    for byte in frame[:-1]:
        assert list(decoder.feed(bytes([byte]))) == []
    (only,) = decoder.feed(frame[-1:])
    assert only.envelope.correlation_id == 7
    assert bytes(only.attachment) == b"12345"


def test_layout() -> None:
    envelope = envelope_of(1)
    body = envelope.SerializeToString()
    assert encode_frame(envelope, 10) == struct.pack("<II", 4 + len(body) + 10, len(body)) + body
    assert parse_prefix(b"??" + encode_frame(envelope, 10), 2) == Prefix(len(body), 10)


@pytest.mark.parametrize(
    ("frame_bytes", "envelope_bytes", "code"),
    [
        (FRAME_BYTES_MAX + 1, 10, pb.FRAME_TOO_LARGE),
        (2**32 - 1, 10, pb.FRAME_TOO_LARGE),
        (FRAME_BYTES_MAX, ENVELOPE_BYTES_MAX + 1, pb.FRAME_TOO_LARGE),
        (100, 2**32 - 1, pb.FRAME_TOO_LARGE),
        (0, 0, pb.MALFORMED_FRAME),
        (3, 1, pb.MALFORMED_FRAME),
        (4, 0, pb.MALFORMED_FRAME),
        (100, 0, pb.MALFORMED_FRAME),
        (4, 1, pb.MALFORMED_FRAME),
        (100, 97, pb.MALFORMED_FRAME),
    ],
)
def test_lengths_are_refused_before_anything_is_read(frame_bytes: int, envelope_bytes: int, code: int) -> None:
    prefix = struct.pack("<II", frame_bytes, envelope_bytes)
    with pytest.raises(ProtocolError) as refused:
        parse_prefix(prefix)
    assert refused.value.code == code
    with pytest.raises(ProtocolError) as refused:
        list(FrameDecoder().feed(prefix))
    assert refused.value.code == code


def test_the_limit_before_the_greeting_is_small() -> None:
    prefix = struct.pack("<II", FRAME_BYTES_MAX_BEFORE_HELLO + 1, 10)
    assert parse_prefix(prefix).envelope_bytes == 10
    with pytest.raises(ProtocolError) as refused:
        parse_prefix(prefix, frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO)
    assert refused.value.code == pb.FRAME_TOO_LARGE


def test_largest_and_smallest_lengths_that_pass() -> None:
    largest = struct.pack("<II", FRAME_BYTES_MAX, ENVELOPE_BYTES_MAX)
    assert parse_prefix(largest) == Prefix(ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX - 4 - ENVELOPE_BYTES_MAX)
    assert parse_prefix(struct.pack("<II", 5, 1)) == Prefix(1, 0)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    frames: list[Frame] = []
    code = None
    try:
        frames += FrameDecoder(frame_bytes_max=1000).feed(data)
    except ProtocolError as error:
        code = error.code
    assert code in {None, pb.MALFORMED_FRAME, pb.FRAME_TOO_LARGE}
    assert sum(FRAME_PREFIX_BYTES + len(frame.attachment) for frame in frames) <= len(data)


def test_an_envelope_that_does_not_decode() -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_envelope(b"\xff\xff\xff")
    assert refused.value.code == pb.MALFORMED_FRAME


def test_a_kind_of_a_newer_peer_decodes_without_a_kind() -> None:
    # The last of the fields that a tag of two bytes can name, length-delimited, empty: no kind of this build.
    field = 2047
    assert field not in pb.Envelope.DESCRIPTOR.fields_by_number
    newer = pb.Envelope(correlation_id=5).SerializeToString() + bytes([field << 3 & 0x7F | 0x80 | 2, field >> 4, 0])
    envelope = parse_envelope(newer)
    assert envelope.correlation_id == 5
    assert envelope.WhichOneof("kind") is None


def test_too_large_frame_is_not_encoded() -> None:
    with pytest.raises(ProtocolError) as refused:
        encode_frame(envelope_of(1), FRAME_BYTES_MAX)
    assert refused.value.code == pb.FRAME_TOO_LARGE
    with pytest.raises(ProtocolError) as refused:
        encode_frame(envelope_of(1, "x" * ENVELOPE_BYTES_MAX))
    assert refused.value.code == pb.FRAME_TOO_LARGE
    body_bytes = len(encode_frame(envelope_of(1))) - FRAME_PREFIX_BYTES
    parse_prefix(encode_frame(envelope_of(1), FRAME_BYTES_MAX - 4 - body_bytes))


def test_attachments_are_cut_as_listed() -> None:
    whole = memoryview(b"aabbbc")
    assert [bytes(part) for part in split_attachment(whole, [2, 3, 0, 1])] == [b"aa", b"bbb", b"", b"c"]
    assert split_attachment(memoryview(b""), []) == []
    for lengths in ([2, 3], [2, 3, 2], []):
        with pytest.raises(ProtocolError) as refused:
            split_attachment(whole, lengths)
        assert refused.value.code == pb.MALFORMED_FRAME
