"""Receiving of frames, with large attachments received into their final buffer.

Small frames are received into one scratch buffer. If an attachment is not complete there, its memory is allocated once,
the received part is copied, and the rest is received into place, so that a large batch is written to disk from the
buffer that the kernel filled. After a large frame another is likely, so only `FIRST_BYTES` are received together with
the next envelope, which leaves little to copy. Memory is allocated only after the lengths have passed the limits and
`admit` has returned True; a declined attachment is read through the scratch buffer and discarded, so the connection
stays usable and the client gets its answer. An envelope larger than the scratch buffer must be received before `admit`
can see it: `gather` is called before its memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from google.protobuf.message import DecodeError

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, FRAME_PREFIX_BYTES
from tidelog_proto.process.buffers import SMALL_BYTES, allocate, allocate_large
from tidelog_proto.wire.frames import PREFIX, U32_BYTES, Frame, parse_envelope, parse_prefix
from tidelog_proto.wire.pushed_events import PushedEvent, pushed_event

SCRATCH_BYTES: Final = 64 * 1024
FIRST_BYTES: Final = 4 * 1024
"""Number of bytes that are received at first after a frame whose attachment was larger than the scratch buffer."""

Admit = Callable[[pb.Envelope, int], bool]
"""Called with a frame's envelope and attachment length before memory is allocated; returns False to decline it."""

Gather = Callable[[int], None]
"""Called with the size of a large envelope before it is received; raises `ProtocolError` to end the stream."""


assert SCRATCH_BYTES <= ENVELOPE_BYTES_MAX, "an envelope in the scratch buffer is within the limit"

_envelope_of: Final = pb.Envelope.FromString
_made: Final = tuple.__new__
"""Creates a frame; the named tuple's own constructor is a slower wrapper of this."""

_NOTHING: Final = memoryview(b"")

DECLINED: Final = Frame(pb.Envelope(), _NOTHING)
"""Returned instead of a declined frame, so that the caller can stop after it as after any other frame."""


def _gather_any(size_bytes: int) -> None:
    del size_bytes


class FrameReceiver:
    """Splits received bytes into frames; for `asyncio.BufferedProtocol`.

    Receive into `buffer()`, then call `take(n)`, which returns the next complete frame, or iterate over `received(n)`.
    For a declined frame they return `DECLINED`: `admit` has seen its envelope and answers it.

    Args:
        frame_bytes_max: maximum length of a frame; may be changed between frames.
        admit: see `Admit`; None: all frames are admitted.
        gather: see `Gather`; by default all envelopes within the limit are received.
    """

    def __init__(self, *, frame_bytes_max: int, admit: Admit | None = None, gather: Gather = _gather_any) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.envelope_bytes = 0
        """Length of the current frame's envelope, for `admit`."""
        self.left_bytes = 0
        """Received bytes after the last returned frame that are not parsed yet."""
        self._admit = admit
        self._gather = gather
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        self._at = 0
        """Position of the first byte in the scratch buffer that is not parsed."""
        self.incomplete: pb.Envelope | None = None
        """Envelope of the frame whose attachment is being received into its own buffer; None otherwise."""
        self._attachment = _NOTHING
        self._attachment_filled = 0
        self.discard_bytes = 0
        """Bytes of a declined attachment that are not received yet."""
        self._expects_large = False

    @property
    def arrived_bytes(self) -> int:
        """Received bytes of the current attachment, or else of the current envelope."""
        return self._filled if self.incomplete is None else self._attachment_filled

    def buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - so that it can serve as a protocol's `get_buffer`
        """Return the buffer for the next bytes; never empty."""
        if self.incomplete is not None:
            return self._attachment[self._attachment_filled :]
        if self._expects_large and self._filled < FIRST_BYTES:
            return self._scratch[self._filled : FIRST_BYTES]
        return self._scratch[self._filled :]

    def goes_on(self, size_bytes: int) -> bool:
        """Count bytes in the middle of a large attachment; return False for other bytes, which are then for `take`.

        A fast path for callers that wait for the complete frame; `take` accepts these bytes as well.
        """
        filled = self._attachment_filled + size_bytes
        if self.incomplete is None or filled >= len(self._attachment):
            return False
        self._attachment_filled = filled
        return True

    def event(self, size_bytes: int) -> PushedEvent | None:
        """Return the small frame that `size_bytes` in `buffer()` consist of, if it is a pushed event as nodes send it.

        Return None for other bytes, which the caller passes to `whole` or `take`. For a receiver without `admit` only.
        """
        if self._filled or self.incomplete is not None or self.discard_bytes or size_bytes > self.frame_bytes_max:
            return None
        event = pushed_event(self._scratch, size_bytes)
        if event is not None:
            self._expects_large = False
            self.left_bytes = 0
        return event

    def whole(self, size_bytes: int) -> Frame | None:
        """Return the one small frame that `size_bytes` in `buffer()` consist of; None for other bytes: use `take`.

        The result is `DECLINED` if `admit` declines the frame. Fast path, which calls no other function of this module.
        `take` also reports the errors.
        """
        if self._filled or self.incomplete is not None or self.discard_bytes or size_bytes < FRAME_PREFIX_BYTES:
            return None
        scratch = self._scratch
        frame_bytes, envelope_bytes = PREFIX.unpack_from(scratch)
        attachment = FRAME_PREFIX_BYTES + envelope_bytes
        if (
            frame_bytes + U32_BYTES != size_bytes
            or not FRAME_PREFIX_BYTES < attachment <= size_bytes
            or frame_bytes > self.frame_bytes_max
            or len(scratch) != SCRATCH_BYTES
        ):
            return None
        try:
            envelope = _envelope_of(bytes(scratch[FRAME_PREFIX_BYTES:attachment]))
        except DecodeError:
            return None
        self.envelope_bytes = envelope_bytes
        self._expects_large = False
        self.left_bytes = 0
        if self._admit is not None and not self._admit(envelope, size_bytes - attachment):
            return DECLINED
        return _made(Frame, (envelope, memoryview(bytearray(scratch[attachment:size_bytes]))))

    def received(self, size_bytes: int) -> Iterator[Frame]:
        """Yield the complete frames in `size_bytes` more bytes, and `DECLINED` for each declined one; see `take`."""
        frame = self.take(size_bytes)
        while frame is not None:
            yield frame
            frame = self.take()

    def take(self, size_bytes: int = 0) -> Frame | None:
        """Count `size_bytes` in `buffer()` and return the next complete frame: `DECLINED` for a declined one, or None.

        A frame that is alone in the buffer takes a single call; `left_bytes` tells whether another call is worthwhile.

        Raises:
            ProtocolError: FRAME_TOO_LARGE or MALFORMED_FRAME; the stream is out of sync and must be closed.
        """
        frame: Frame | None
        if self.incomplete is not None:
            filled = self._attachment_filled + size_bytes
            if filled < len(self._attachment):
                self._attachment_filled = filled
                return None
            frame = _made(Frame, (self.incomplete, self._attachment))
            self.incomplete = None
            self._attachment = _NOTHING
            self._attachment_filled = self.left_bytes = 0
            return frame
        scratch, at = self._scratch, self._at
        filled = self._filled = self._filled + size_bytes
        if self.discard_bytes:
            at = self._discard(at)
        if filled - at < FRAME_PREFIX_BYTES:
            self._shift(at)
            return None
        frame_bytes, envelope_bytes = PREFIX.unpack_from(scratch, at)
        if frame_bytes > self.frame_bytes_max or not 0 < envelope_bytes <= min(frame_bytes - U32_BYTES, SCRATCH_BYTES):
            # Raises, unless the envelope is valid and only larger than the scratch buffer.
            parse_prefix(scratch, at, frame_bytes_max=self.frame_bytes_max)
        body = at + FRAME_PREFIX_BYTES
        attachment = body + envelope_bytes
        if filled < attachment:
            self._shift(at, FRAME_PREFIX_BYTES + envelope_bytes)
            return None
        try:
            envelope = _envelope_of(bytes(scratch[body:attachment]))
        except DecodeError:
            envelope = parse_envelope(scratch[body:attachment])  # raises the protocol's error
        attachment_bytes = frame_bytes - U32_BYTES - envelope_bytes
        self.envelope_bytes = envelope_bytes
        if self._admit is not None and not self._admit(envelope, attachment_bytes):
            self.discard_bytes = attachment_bytes
            self._took(self._discard(attachment))
            return DECLINED
        self._expects_large = attachment_bytes > SCRATCH_BYTES
        end = attachment + attachment_bytes
        if end > filled:
            self._attachment_filled = filled - attachment
            is_small = attachment_bytes < SMALL_BYTES
            memory = allocate(attachment_bytes) if is_small else memoryview(allocate_large(attachment_bytes)).cast("B")
            self._attachment = memory
            self._attachment[: self._attachment_filled] = scratch[attachment:filled]
            self.incomplete = envelope
            end = filled
            frame = None
        else:
            frame = _made(Frame, (envelope, memoryview(bytearray(scratch[attachment:end]))))
        if end == filled and len(scratch) == SCRATCH_BYTES:
            self._filled = self._at = self.left_bytes = 0
        else:
            self._took(end)
        return frame

    def arrived(self, size_bytes: int) -> None:
        """Count bytes in `buffer()` that `take` parses later; not in the middle of a large attachment."""
        self._filled += size_bytes

    def _took(self, at: int) -> None:
        """Note that everything before `at` is parsed."""
        self._at = at
        self.left_bytes = self._filled - at
        if not self.left_bytes:
            self._shift(at)

    def _discard(self, at: int) -> int:
        """Skip bytes of a declined attachment; return where the next frame may begin."""
        skipped = min(self.discard_bytes, self._filled - at)
        self.discard_bytes -= skipped
        return at + skipped

    def _shift(self, at: int, needed_bytes: int = 0) -> None:
        """Move the bytes from `at` on to the front; enlarge the buffer if the envelope there does not fit.

        The envelope's length has passed the limits.
        """
        assert needed_bytes <= FRAME_PREFIX_BYTES + ENVELOPE_BYTES_MAX
        left = self._filled - at
        size_bytes = max(SCRATCH_BYTES, needed_bytes)
        is_new = at > 0 or size_bytes != len(self._scratch)
        if needed_bytes > SCRATCH_BYTES and is_new:
            self._gather(needed_bytes)
        if size_bytes != len(self._scratch):  # Grow for this envelope, or shrink after the previous one.
            buffer = memoryview(bytearray(size_bytes))
            buffer[:left] = self._scratch[at : self._filled]
            self._scratch = buffer
        elif at and left:
            self._scratch[:left] = bytes(self._scratch[at : self._filled])
        self._filled = left
        self._at = 0
