"""Frames: `u32 frame length | u32 envelope length | envelope | attachment`, and their vectored writes.

The frame length counts everything after itself. A reader works in three steps, so that it allocates no memory for an
unchecked length and can receive an attachment into its final buffer:

1. `parse_prefix` checks 8 bytes and returns the lengths of the envelope and the attachment;
2. `parse_envelope` decodes the envelope;
3. the reader allocates memory for the attachment, or declines it, and receives the attachment.

`FrameDecoder` does all three for callers that have chunks of bytes.

A frame with a large attachment is written as several buffers by `write_parts`, with the same behaviour on every event
loop. Since Python 3.12 asyncio's `writelines` sends buffers without joining them, with three bugs in releases that are
in use (all of them in 3.13.0):

- A trailing empty buffer is never removed: the loop spins, and closing never completes.
- It does not pause the protocol when the write buffer is full.
- On a closing transport it raises, or watches a descriptor whose number the next connection may get.

So empty buffers are skipped, a closing transport gets nothing, and a transport whose write buffer exceeds its limit is
made to check the limit again. Rejected: joining the buffers, which copies every batch.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

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

PREFIX: Final = struct.Struct("<II")
U32_BYTES: Final = 4

_OTHER_PROTOCOLS: Final = {
    int.from_bytes(
        b"HTTP", "little"
    ): "the peer answers with HTTP: this is the port of a gateway or a management port; "
    "connect to a node's native port, 7400 by default"
} | {
    int.from_bytes(verb, "little"): "this is a node's native port, and the client sends HTTP: connect to a gateway's "
    "port, 8080 by default"
    for verb in (b"GET ", b"POST", b"PUT ", b"HEAD", b"PATC", b"DELE", b"OPTI")
}
"""First bytes of other protocols, read as frame lengths, and the error for each; all exceed the limit of frames."""


_TLS: Final = (
    "the peer speaks TLS and this side does not: configure TLS on the side that lacks it, with tls_cert_file on a "
    "node, or TIDELOG_CA_FILE, tls= or a context on a client"
)
_TLS_HANDSHAKE, _TLS_ALERT = 0x0316, 0x0315
"""First bytes of TLS records, as the lower half of a frame length."""


class Prefix(NamedTuple):
    """The checked lengths of a frame's two parts."""

    envelope_bytes: int
    attachment_bytes: int


class Frame(NamedTuple):
    """One complete frame."""

    envelope: pb.Envelope
    attachment: memoryview


def parse_prefix(buffer: Buffer, at: int = 0, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> Prefix:
    """Check the 8 bytes at `at` and return the lengths of the envelope and the attachment after them.

    Raises:
        ProtocolError: FRAME_TOO_LARGE past a limit; MALFORMED_FRAME for lengths that contradict each other, and for the
            first bytes of HTTP or TLS.
    """
    frame_bytes, envelope_bytes = PREFIX.unpack_from(buffer, at)
    if frame_bytes > frame_bytes_max:
        if (spoken := _OTHER_PROTOCOLS.get(frame_bytes)) is not None:
            raise ProtocolError(pb.MALFORMED_FRAME, spoken)
        if frame_bytes & 0xFFFF in {_TLS_HANDSHAKE, _TLS_ALERT} and frame_bytes_max <= FRAME_BYTES_MAX_BEFORE_HELLO:
            raise ProtocolError(pb.MALFORMED_FRAME, _TLS)
        raise ProtocolError(pb.FRAME_TOO_LARGE, f"the frame has {frame_bytes} bytes; the limit is {frame_bytes_max}")
    if envelope_bytes > ENVELOPE_BYTES_MAX:
        raise ProtocolError(
            pb.FRAME_TOO_LARGE, f"the envelope has {envelope_bytes} bytes; the limit is {ENVELOPE_BYTES_MAX}"
        )
    if frame_bytes < U32_BYTES or envelope_bytes == 0 or envelope_bytes > frame_bytes - U32_BYTES:
        raise ProtocolError(
            pb.MALFORMED_FRAME,
            f"the frame declares length {frame_bytes} and an envelope of {envelope_bytes} bytes; the envelope must "
            f"have at least 1 byte, and at least {U32_BYTES} fewer than the frame's length",
        )
    return Prefix(envelope_bytes, frame_bytes - U32_BYTES - envelope_bytes)


def parse_envelope(data: Buffer) -> pb.Envelope:
    """Decode an envelope.

    Raises:
        ProtocolError: MALFORMED_FRAME if the bytes are not an envelope. An unknown kind decodes to an envelope without
            a kind; the dispatcher answers it with UNKNOWN_KIND.
    """
    try:
        return pb.Envelope.FromString(bytes(data))
    except DecodeError as error:
        raise ProtocolError(pb.MALFORMED_FRAME, f"the envelope does not decode: {error}") from error


def encode_frame(envelope: pb.Envelope, attachment_bytes: int = 0) -> bytes:
    """Return the prefix and the envelope; the caller sends `attachment_bytes` of attachment after them.

    Raises:
        ProtocolError: FRAME_TOO_LARGE if the frame exceeds a limit.
    """
    body = envelope.SerializeToString()
    frame_bytes = U32_BYTES + len(body) + attachment_bytes
    if len(body) > ENVELOPE_BYTES_MAX or frame_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(
            pb.FRAME_TOO_LARGE,
            f"the frame has {frame_bytes} bytes, {len(body)} of them in the envelope; the limits are {FRAME_BYTES_MAX} "
            f"for the frame and {ENVELOPE_BYTES_MAX} for the envelope",
        )
    return PREFIX.pack(frame_bytes, len(body)) + body


def split_attachment(attachment: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Split an attachment into the parts that its envelope lists.

    Raises:
        ProtocolError: MALFORMED_FRAME if the sum of the lengths differs from the attachment's length.
    """
    if sum(lengths) != len(attachment):
        raise ProtocolError(
            pb.MALFORMED_FRAME,
            f"the envelope lists batches of {sum(lengths)} bytes in total, the attachment has {len(attachment)}",
        )
    parts: list[memoryview] = []
    at = 0
    for length in lengths:
        parts.append(attachment[at : at + length])
        at += length
    return parts


class FrameDecoder:
    """Splits a stream of bytes into frames. Buffers at most one frame plus one chunk."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._pending = bytearray()

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Add received bytes and yield the complete frames.

        Raises:
            ProtocolError: as `parse_prefix` and `parse_envelope`; the decoder cannot be used afterwards.
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


JOIN_BYTES_MAX: Final = 16 * 1024
"""Size up to which the parts of a frame are joined, because a transport handles one buffer faster than several."""


def write_parts(transport: asyncio.Transport, parts: Iterable[Any]) -> None:
    """Send several buffers in order; do nothing if the transport is closing or closed.

    Args:
        transport: of asyncio or uvloop; its protocol is paused and resumed as with `write`.
        parts: bytes-like objects whose length is in bytes; they must not change before they are sent.
    """
    if transport.is_closing():
        return
    transport.writelines(list(filter(len, parts)))
    unsent_bytes = transport.get_write_buffer_size()
    if unsent_bytes:
        low_bytes, high_bytes = transport.get_write_buffer_limits()
        if unsent_bytes > high_bytes:
            # Setting the limits is the only public way to make a transport check them. A paused protocol is not paused
            # again.
            transport.set_write_buffer_limits(high=high_bytes, low=low_bytes)
