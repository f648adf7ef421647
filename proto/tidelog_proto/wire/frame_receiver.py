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
from tidelog_proto.process.buffers import allocate
from tidelog_proto.wire.frames import PREFIX, U32_BYTES, Frame, parse_envelope, parse_prefix
from tidelog_proto.wire.pushed_events import PushedEvent, pushed_event

SCRATCH_BYTES: Final = 64 * 1024
FIRST_BYTES: Final = 4 * 1024
"""Number of bytes that are received at first after a frame that was larger than the scratch buffer."""

Admit = Callable[[pb.Envelope, int], bool]
"""Called with a frame's envelope and attachment length before memory is allocated; returns False to decline it."""

Gather = Callable[[int], None]
"""Called with the size of a large envelope before it is received; raises `ProtocolError` to end the stream."""


assert SCRATCH_BYTES <= ENVELOPE_BYTES_MAX, "an envelope in the scratch buffer is within the limit"

_envelope_of: Final = pb.Envelope.FromString
_made: Final = tuple.__new__
"""Creates a frame; the named tuple's own constructor is a slower wrapper of this."""

DECLINED: Final = Frame(pb.Envelope(), memoryview(b""))
"""Yielded instead of a declined frame, so that the caller can stop after it as after any other frame."""


def _gather_any(size_bytes: int) -> None:
    del size_bytes


class FrameReceiver:
    """Splits received bytes into frames; for `asyncio.BufferedProtocol`.

    Receive into `buffer()`, then call `received(n)`, which yields the complete frames. For a declined frame it yields
    `DECLINED`: `admit` has seen its envelope and answers it.

    Args:
        admit: see `Admit`; None: all frames are admitted.
    """

    def __init__(self, *, frame_bytes_max: int, admit: Admit | None = None, gather: Gather = _gather_any) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.envelope_bytes = 0
        """Length of the current frame's envelope, for `admit`."""
        self.left_bytes = 0
        """Received bytes after the last yielded frame that are not parsed yet."""
        self._admit = admit
        self._gather = gather
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        self.incomplete: pb.Envelope | None = None
        """Envelope of the frame whose attachment is being received into memory of its own; None between frames."""
        self._attachment = memoryview(b"")
        self._attachment_filled = 0
        self._discard_bytes = 0
        self._expects_large = False

    @property
    def arrived_bytes(self) -> int:
        """Received bytes of the current attachment, or else of the current envelope."""
        return self._filled if self.incomplete is None else self._attachment_filled

    @property
    def is_inside_frame(self) -> bool:
        """Whether a frame is partly received and its attachment's memory is allocated."""
        return self.incomplete is not None

    @property
    def discards(self) -> bool:
        """Whether the next bytes belong to a declined attachment."""
        return self._discard_bytes > 0

    def buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - so that it can serve as a protocol's `get_buffer`
        """Return the buffer for the next bytes; never empty."""
        if self.incomplete is not None:
            return self._attachment[self._attachment_filled :]
        if self._expects_large and self._filled < FIRST_BYTES:
            return self._scratch[self._filled : FIRST_BYTES]
        return self._scratch[self._filled :]

    def goes_on(self, size_bytes: int) -> bool:
        """Count bytes in the middle of a large attachment; return False for all other bytes, which `received` takes.

        A fast path for callers that wait for the complete frame; `received` accepts these bytes as well.
        """
        filled = self._attachment_filled + size_bytes
        if self.incomplete is None or filled >= len(self._attachment):
            return False
        self._attachment_filled = filled
        return True

    def event(self, size_bytes: int) -> PushedEvent | None:
        """Return the small frame that `size_bytes` in `buffer()` consist of, if it is a pushed event as nodes send it.

        None for other bytes: use `whole` or `received`. Only for a receiver without `admit`.
        """
        if self._filled or self.incomplete is not None or self._discard_bytes or size_bytes > self.frame_bytes_max:
            return None
        event = pushed_event(self._scratch, size_bytes)
        if event is not None:
            self._expects_large = False
            self.left_bytes = 0
        return event

    def whole(self, size_bytes: int) -> Frame | None:
        """Return the one small frame that `size_bytes` in `buffer()` consist of; None for other bytes: use `received`.

        Fast path, which calls no other function of this module. `received` also reports the errors.
        """
        if self._filled or self.incomplete is not None or self._discard_bytes or size_bytes < FRAME_PREFIX_BYTES:
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
        """Parse `size_bytes` in `buffer()`; yield complete frames, and `DECLINED` for each declined one.

        Raises:
            ProtocolError: FRAME_TOO_LARGE or MALFORMED_FRAME; the stream is out of sync and must be closed.
        """
        if self.incomplete is not None:
            if not self.goes_on(size_bytes):
                yield self._finish()
            return
        filled = self._filled = self._filled + size_bytes
        at = self._discard(0) if self._discard_bytes else 0
        needed_bytes = 0
        while filled - at >= FRAME_PREFIX_BYTES:
            envelope_bytes, attachment_bytes = parse_prefix(self._scratch, at, frame_bytes_max=self.frame_bytes_max)
            body = at + FRAME_PREFIX_BYTES
            attachment = body + envelope_bytes
            if filled < attachment:
                needed_bytes = FRAME_PREFIX_BYTES + envelope_bytes
                break
            envelope = parse_envelope(self._scratch[body:attachment])
            at = attachment
            self.envelope_bytes = envelope_bytes
            if self._admit is not None and not self._admit(envelope, attachment_bytes):
                self._discard_bytes = attachment_bytes
                at = self._discard(at)
                self.left_bytes = filled - at
                yield DECLINED
                continue
            self._expects_large = attachment_bytes > SCRATCH_BYTES
            here = min(filled - at, attachment_bytes)
            part = self._scratch[at : at + here]
            at += here
            if here < attachment_bytes:
                self._attachment = allocate(attachment_bytes)
                self._attachment[:here] = part
                self._attachment_filled = here
                self.incomplete = envelope
                break
            self.left_bytes = filled - at
            yield Frame(envelope, memoryview(bytearray(part)))
        self._shift(at, needed_bytes)

    def _finish(self) -> Frame:
        assert self.incomplete is not None
        frame = Frame(self.incomplete, self._attachment)
        self.incomplete = None
        self._attachment = memoryview(b"")
        self._attachment_filled = self.left_bytes = 0
        return frame

    def _discard(self, at: int) -> int:
        """Skip bytes of a declined attachment; return where the next frame may begin."""
        skipped = min(self._discard_bytes, self._filled - at)
        self._discard_bytes -= skipped
        return at + skipped

    def _shift(self, at: int, needed_bytes: int) -> None:
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
