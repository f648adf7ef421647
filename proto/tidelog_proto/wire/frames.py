"""Frames: `u32 frame length | u32 envelope length | envelope | attachment`, without any I/O.

The frame length counts everything behind itself. A reader works in three steps so that no memory is taken
for a length that was not checked, and so that an attachment can be received straight into its final place:

1. `parse_prefix` on 8 bytes says how long the envelope and the attachment are, or refuses;
2. `parse_envelope` turns the envelope's bytes into an `Envelope`, or refuses;
3. the reader takes (or declines) memory for the attachment and receives into it.

`FrameDecoder` does all three for callers that have whole chunks of bytes at hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_HELLO,
    FRAME_PREFIX_BYTES,
)

_PREFIX: Final = struct.Struct("<II")
_U32_BYTES: Final = 4

_OTHER_PROTOCOLS: Final = {
    int.from_bytes(b"HTTP", "little"): "HTTP comes from there: it is a gateway's or a management port; give a node's "
    "native one, 7400 unless told otherwise"
} | {
    int.from_bytes(verb, "little"): "this is HTTP, and this port a node's native one: gateways speak HTTP, on 8080 "
    "unless told otherwise"
    for verb in (b"GET ", b"POST", b"PUT ", b"HEAD", b"PATC", b"DELE", b"OPTI")
}
"""What the first bytes mean that people send to the wrong port; as lengths of frames they are above every limit."""


_TLS: Final = (
    "the other side speaks TLS and this one does not: say so to the one that lacks it, by tls_cert_file on a node, by "
    "TIDELOG_CA_FILE, tls= or a context on a client"
)
_TLS_HANDSHAKE, _TLS_ALERT = 0x0316, 0x0315
"""How such records of TLS begin, read as the lower half of a frame's length."""


class Prefix(NamedTuple):
    """The lengths of a frame's two parts, in bytes, both checked."""

    envelope_bytes: int
    attachment_bytes: int


class Frame(NamedTuple):
    """One whole frame."""

    envelope: pb.Envelope
    attachment: memoryview


def parse_prefix(buffer: Buffer, at: int = 0, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> Prefix:
    """Check the 8 bytes at `at` and return the lengths of what follows.

    Raises:
        ProtocolError: FRAME_TOO_LARGE past a limit, MALFORMED_FRAME for lengths that do not add up.
    """
    frame_bytes, envelope_bytes = _PREFIX.unpack_from(buffer, at)
    if frame_bytes > frame_bytes_max:
        if (spoken := _OTHER_PROTOCOLS.get(frame_bytes)) is not None:
            raise ProtocolError(pb.MALFORMED_FRAME, spoken)
        if frame_bytes & 0xFFFF in {_TLS_HANDSHAKE, _TLS_ALERT} and frame_bytes_max <= FRAME_BYTES_MAX_BEFORE_HELLO:
            raise ProtocolError(pb.MALFORMED_FRAME, _TLS)
        raise ProtocolError(pb.FRAME_TOO_LARGE, f"a frame of {frame_bytes} bytes; the limit here is {frame_bytes_max}")
    if envelope_bytes > ENVELOPE_BYTES_MAX:
        raise ProtocolError(pb.FRAME_TOO_LARGE, f"an envelope of {envelope_bytes} bytes; at most {ENVELOPE_BYTES_MAX}")
    if frame_bytes < _U32_BYTES or envelope_bytes == 0 or envelope_bytes > frame_bytes - _U32_BYTES:
        raise ProtocolError(pb.MALFORMED_FRAME, f"frame length {frame_bytes} with envelope length {envelope_bytes}")
    return Prefix(envelope_bytes, frame_bytes - _U32_BYTES - envelope_bytes)


def parse_envelope(data: Buffer) -> pb.Envelope:
    """Decode an envelope.

    Raises:
        ProtocolError: MALFORMED_FRAME when the bytes are not an envelope. A kind that this build does not
            know decodes to an envelope with no kind set; whoever dispatches it answers UNKNOWN_KIND.
    """
    try:
        return pb.Envelope.FromString(bytes(data))
    except DecodeError as error:
        raise ProtocolError(pb.MALFORMED_FRAME, f"the envelope does not decode: {error}") from error


def encode_frame(envelope: pb.Envelope, attachment_bytes: int = 0) -> bytes:
    """Return the prefix and the envelope; the caller sends `attachment_bytes` of attachment right behind.

    Raises:
        ProtocolError: FRAME_TOO_LARGE when the frame would break a limit.
    """
    body = envelope.SerializeToString()
    frame_bytes = _U32_BYTES + len(body) + attachment_bytes
    if len(body) > ENVELOPE_BYTES_MAX or frame_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(pb.FRAME_TOO_LARGE, f"a frame of {frame_bytes} bytes, {len(body)} of them envelope")
    return _PREFIX.pack(frame_bytes, len(body)) + body


def split_attachment(attachment: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Cut an attachment into the parts that its envelope lists.

    Raises:
        ProtocolError: MALFORMED_FRAME when the lengths do not add up to the attachment exactly.
    """
    if sum(lengths) != len(attachment):
        raise ProtocolError(
            pb.MALFORMED_FRAME, f"the envelope lists {sum(lengths)} bytes, the attachment has {len(attachment)}"
        )
    parts: list[memoryview] = []
    at = 0
    for length in lengths:
        parts.append(attachment[at : at + length])
        at += length
    return parts


class FrameDecoder:
    """Cuts a stream of bytes into frames. Holds at most one frame's bytes plus one chunk."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._pending = bytearray()

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take received bytes and yield the frames that are now whole.

        Raises:
            ProtocolError: as `parse_prefix` and `parse_envelope`; the stream is then of no further use.
        """
        self._pending += data
        while len(self._pending) >= FRAME_PREFIX_BYTES:
            prefix = parse_prefix(self._pending, frame_bytes_max=self.frame_bytes_max)
            end = FRAME_PREFIX_BYTES + prefix.envelope_bytes + prefix.attachment_bytes
            if len(self._pending) < end:
                return
            frame = bytes(memoryview(self._pending)[:end])
            del self._pending[:end]
            body = memoryview(frame)[FRAME_PREFIX_BYTES:]
            yield Frame(parse_envelope(body[: prefix.envelope_bytes]), body[prefix.envelope_bytes :])
