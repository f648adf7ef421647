"""Frames on the sockets between the parent and its workers: a kind of one byte, a length of four, and the payload."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from tidelog_proto.limits import MIB

HEADER: Final = struct.Struct(">cI")
PAYLOAD_BYTES_MAX: Final = 64 * MIB
UNSENT_BYTES_MAX: Final = 16 * MIB
"""Maximum number of unsent bytes to one process; further frames to it are dropped until it reads again."""

BEGIN: Final = b"B"
"""Parent to worker, as the first frame: the worker's settings and context, as JSON."""
DUTIES: Final = b"D"
"""Parent to worker: `Duties`, as JSON."""
COLLECT: Final = b"C"
"""Parent to worker: send `METRICS`."""
MERGED: Final = b"M"
"""Parent to worker: the merged metrics of all workers, as JSON; the answer to `REQUEST_METRICS`."""
READY: Final = b"R"
"""Worker to parent: the worker accepts connections."""
HEARTBEAT: Final = b"A"
"""Worker to parent, each second: the worker's event loop runs."""
STOPPING: Final = b"T"
"""Worker to parent: the worker accepts no more connections and will end."""
METRICS: Final = b"F"
"""Worker to parent: the worker's metrics, as JSON (`metrics.merged_metrics.Families`)."""
REQUEST_METRICS: Final = b"Q"
"""Worker to parent: send `MERGED`."""
SAMPLE: Final = b"S"
"""Worker to parent, which forwards it to the other workers: a sample of the topics."""


class FrameError(ValueError):
    """A frame exceeds the limit."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEADER.pack(kind, len(payload)) + payload


def frame_length(header: bytes) -> tuple[bytes, int]:
    """Return the kind and the payload's length of a header.

    Raises:
        FrameError: the length exceeds the limit.
    """
    kind, length = HEADER.unpack(header)
    if length > PAYLOAD_BYTES_MAX:
        raise FrameError(f"a frame of kind {kind!r} has a payload of {length} bytes; the limit is {PAYLOAD_BYTES_MAX}")
    return kind, length


class FrameReader:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and payload of each complete frame.

        Raises:
            FrameError: a frame exceeds the limit.
        """
        self._received += data
        while len(self._received) >= HEADER.size:
            kind, length = frame_length(bytes(self._received[: HEADER.size]))
            end = HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[HEADER.size : end])
            del self._received[:end]
            yield kind, payload
