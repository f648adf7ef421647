"""Receiving frames: from the socket straight into the memory where a batch will live.

Small frames are gathered in one scratch buffer. When a frame's attachment is not complete in it, memory for
the attachment is taken once, what has arrived is copied over, and the rest is received directly into place,
so a large batch is written to disk from the very buffer that the kernel filled. Where one large frame has been, the
next is likely, and only a little is received along with its envelope: the rest need not be copied then. No memory is
taken before the lengths have passed the limits and `admit` has agreed; a declined attachment is read and thrown away
through the scratch buffer, so that the connection stays usable and the client gets its answer. An envelope that does
not fit the scratch buffer is gathered before `admit` can see it: `gather` hears of it before memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, FRAME_PREFIX_BYTES
from tidelog_proto.process.buffers import allocate
from tidelog_proto.wire.frames import Frame, parse_envelope, parse_prefix

SCRATCH_BYTES: Final = 64 * 1024
FIRST_BYTES: Final = 4 * 1024
"""Received at first behind a frame that was larger than the scratch buffer."""

Admit = Callable[[pb.Envelope, int], bool]
"""Called with a frame's envelope and its attachment's length before memory is taken; False declines."""

Gather = Callable[[int], None]
"""Called with the bytes of a large envelope before they are gathered; it raises `ProtocolError` to end the stream."""


DECLINED: Final = Frame(pb.Envelope(), memoryview(b""))
"""What is yielded in place of a frame that was declined, so that who takes frames may stop there, too."""


def _gather_any(size_bytes: int) -> None:
    del size_bytes


class FrameReceiver:
    """Turns received bytes into frames; made for `asyncio.BufferedProtocol`.

    Call `buffer()` for where to receive into, then `received(n)`, which yields the frames that are complete.
    For a declined frame it yields `DECLINED`: `admit` has seen its envelope and answers it.
    """

    def __init__(self, *, frame_bytes_max: int, admit: Admit, gather: Gather = _gather_any) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.envelope_bytes = 0
        """The length of the envelope that `admit` is called with."""
        self.left_bytes = 0
        """Behind the frame that was yielded last, so much is here that was not looked at."""
        self._admit = admit
        self._gather = gather
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        self._envelope: pb.Envelope | None = None
        self._attachment = memoryview(b"")
        self._attachment_filled = 0
        self._discard_bytes = 0
        self._expects_large = False

    @property
    def arrived_bytes(self) -> int:
        """How much is here of an attachment that is coming, or else of an envelope."""
        return self._filled if self._envelope is None else self._attachment_filled

    @property
    def is_amid(self) -> bool:
        """Whether a frame has begun for whose attachment memory is taken."""
        return self._envelope is not None

    @property
    def discards(self) -> bool:
        """Whether what comes next is of a declined attachment, and thrown away."""
        return self._discard_bytes > 0

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        if self._envelope is not None:
            return self._attachment[self._attachment_filled :]
        if self._expects_large and self._filled < FIRST_BYTES:
            return self._scratch[self._filled : FIRST_BYTES]
        return self._scratch[self._filled :]

    def goes_on(self, size_bytes: int) -> bool:
        """Take note of bytes in the middle of a large attachment; False for all others, which are for `received`.

        A short cut for who has nothing to do until a frame is whole; `received` takes these bytes as well.
        """
        filled = self._attachment_filled + size_bytes
        if self._envelope is None or filled >= len(self._attachment):
            return False
        self._attachment_filled = filled
        return True

    def whole(self, size_bytes: int) -> Frame | None:
        """Take `size_bytes` in `buffer()` that are exactly one small frame, and return it; else None, for `received`.

        Raises:
            ProtocolError: as `received`.
        """
        if self._filled or self._envelope is not None or self._discard_bytes or size_bytes < FRAME_PREFIX_BYTES:
            return None
        scratch = self._scratch
        envelope_bytes, attachment_bytes = parse_prefix(scratch, frame_bytes_max=self.frame_bytes_max)
        attachment = FRAME_PREFIX_BYTES + envelope_bytes
        if attachment + attachment_bytes != size_bytes or len(scratch) != SCRATCH_BYTES:
            return None
        envelope = parse_envelope(scratch[FRAME_PREFIX_BYTES:attachment])
        self.envelope_bytes = envelope_bytes
        self._expects_large = False
        self.left_bytes = 0
        if not self._admit(envelope, attachment_bytes):
            return DECLINED
        return Frame(envelope, memoryview(bytearray(scratch[attachment:size_bytes])))

    def received(self, size_bytes: int) -> Iterator[Frame]:
        """Take note of `size_bytes` in `buffer()` and yield complete frames, and `DECLINED` for each that is declined.

        Raises:
            ProtocolError: FRAME_TOO_LARGE or MALFORMED_FRAME; the stream has lost its shape and must be closed.
        """
        if self._envelope is not None:
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
            if not self._admit(envelope, attachment_bytes):
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
                self._envelope = envelope
                break
            self.left_bytes = filled - at
            yield Frame(envelope, memoryview(bytearray(part)))
        self._shift(at, needed_bytes)

    def _finish(self) -> Frame:
        assert self._envelope is not None
        frame = Frame(self._envelope, self._attachment)
        self._envelope = None
        self._attachment = memoryview(b"")
        self._attachment_filled = self.left_bytes = 0
        return frame

    def _discard(self, at: int) -> int:
        """Skip bytes of a declined attachment; return where the next frame may begin."""
        skipped = min(self._discard_bytes, self._filled - at)
        self._discard_bytes -= skipped
        return at + skipped

    def _shift(self, at: int, needed_bytes: int) -> None:
        """Move what is left behind `at` to the front, and have room for an envelope that begins there.

        Its length has passed the limits.
        """
        assert needed_bytes <= FRAME_PREFIX_BYTES + ENVELOPE_BYTES_MAX
        left = self._filled - at
        size_bytes = max(SCRATCH_BYTES, needed_bytes)
        is_new = at > 0 or size_bytes != len(self._scratch)
        if needed_bytes > SCRATCH_BYTES and is_new:
            self._gather(needed_bytes)
        if size_bytes != len(self._scratch):  # for this envelope, or no longer for the one before it
            kept = memoryview(bytearray(size_bytes))
            kept[:left] = self._scratch[at : self._filled]
            self._scratch = kept
        elif at and left:
            self._scratch[:left] = bytes(self._scratch[at : self._filled])
        self._filled = left
