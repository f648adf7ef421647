"""Received bytes to frames, without I/O, made for `asyncio.BufferedProtocol`.

Envelopes are read from a scratch buffer that is reused for ever. A large attachment gets a buffer of its own,
after its length was checked, and the socket then writes straight into it: one copy less on the way of every
fetched byte. That buffer comes from Arrow's allocator: aligned to 64 bytes, so that columns need no copy, and not
zeroed first. Rejected: `FrameDecoder` (it holds and copies whole frames) and `asyncio.StreamReader` (two copies
and a task switch per read).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.frames import Frame, Prefix, parse_envelope, parse_prefix
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MAX_BEFORE_HELLO, FRAME_PREFIX_BYTES

READ_BYTES_MAX: Final = 256 * 1024
OWN_BUFFER_BYTES_MIN: Final = 16 * 1024
"""Attachments from here on are received in place; smaller ones are copied out of the scratch buffer."""

SCRATCH_BYTES: Final = FRAME_PREFIX_BYTES + ENVELOPE_BYTES_MAX + OWN_BUFFER_BYTES_MIN
"""Any envelope fits, with a small attachment. Pages that nothing ever reaches are never touched and cost nothing."""

assert READ_BYTES_MAX < SCRATCH_BYTES


class FrameReceiver:
    """Cuts a stream into frames. `buffer()` says where the next bytes go, `received(n)` that n are there."""

    def __init__(self) -> None:
        self.frame_bytes_max = FRAME_BYTES_MAX_BEFORE_HELLO
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._start = 0
        self._end = 0
        self._envelope: pb.Envelope | None = None
        self._attachment = memoryview(b"")
        self._filled = 0

    def greeted(self) -> None:
        """The peer has introduced itself: frames may now have their full size."""
        self.frame_bytes_max = FRAME_BYTES_MAX

    def buffer(self) -> memoryview:
        """Return where the next received bytes belong; never empty."""
        if self._envelope is not None:
            return self._attachment[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._scratch) - self._start < FRAME_PREFIX_BYTES:
            self._move_to_start()
        return self._scratch[self._end : self._end + READ_BYTES_MAX]

    def received(self, count: int) -> list[Frame]:
        """Take note of `count` bytes behind `buffer()` and return the frames that are now whole.

        Raises:
            ProtocolError: the stream is no row of frames; it is of no further use.
        """
        if self._envelope is None:
            self._end += count
            return self._cut()
        self._filled += count
        if self._filled < len(self._attachment):
            return []
        frame = Frame(self._envelope, self._attachment)
        self._envelope, self._attachment, self._filled = None, memoryview(b""), 0
        return [frame]

    def _cut(self) -> list[Frame]:
        frames: list[Frame] = []
        while self._end - self._start >= FRAME_PREFIX_BYTES:
            prefix = parse_prefix(self._scratch, self._start, frame_bytes_max=self.frame_bytes_max)
            envelope_end = self._start + FRAME_PREFIX_BYTES + prefix.envelope_bytes
            whole = self._end >= envelope_end + prefix.attachment_bytes
            if self._end < envelope_end or not (whole or prefix.attachment_bytes >= OWN_BUFFER_BYTES_MIN):
                self._make_room(prefix)
                break
            envelope = parse_envelope(self._scratch[self._start + FRAME_PREFIX_BYTES : envelope_end])
            attachment = _allocate(prefix.attachment_bytes)
            here = min(self._end - envelope_end, prefix.attachment_bytes)
            attachment[:here] = self._scratch[envelope_end : envelope_end + here]
            self._start = envelope_end + here
            if here < prefix.attachment_bytes:
                self._envelope, self._attachment, self._filled = envelope, attachment, here
                break
            frames.append(Frame(envelope, attachment))
        return frames

    def _make_room(self, prefix: Prefix) -> None:
        """Move a frame that would run over the scratch buffer's end to its start."""
        needed = FRAME_PREFIX_BYTES + prefix.envelope_bytes + min(prefix.attachment_bytes, OWN_BUFFER_BYTES_MIN)
        if self._start + needed > len(self._scratch):
            self._move_to_start()

    def _move_to_start(self) -> None:
        rest = bytes(self._scratch[self._start : self._end])
        self._scratch[: len(rest)] = rest
        self._start, self._end = 0, len(rest)


def _allocate(size_bytes: int) -> memoryview:
    if not size_bytes:
        return memoryview(bytearray())  # writable, as the others are
    return memoryview(pa.allocate_buffer(size_bytes)).cast("B")
