"""Bytes in flight: a bound that is checked before memory is taken.

What counts is a request's attachment, and its envelope where that is large: an envelope may be 1 MiB, and a request
that waits keeps it. What smaller ones take is bounded by the number of requests, and such a request without an
attachment (for metadata, a position) is always let in: it is the way out of being full.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

SMALL_ENVELOPE_BYTES: Final = 4 * KIB
"""An envelope that is no larger is not counted."""
OVERLOADED_RETRY_MS: Final = 50


def overloaded() -> ProtocolError:
    """Return what somebody is told whose request finds no room."""
    return ProtocolError(
        pb.OVERLOADED,
        "the node works on all the requests that it may; send again",
        retry_after_ms=OVERLOADED_RETRY_MS,
    )


class Budget:
    """A count of bytes with a limit; a node has one for its clients and one for the other nodes."""

    __slots__ = ("bytes_max", "in_flight_bytes")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.in_flight_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more fit. A single request always fits an empty budget."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes + size_bytes <= self.bytes_max

    def admit(self, size_bytes: int) -> bool:
        """Count bytes in if they fit; a zero-byte request is always admitted."""
        before = self.in_flight_bytes
        if before and size_bytes and before + size_bytes > self.bytes_max:
            return False
        self.in_flight_bytes = before + size_bytes
        return True

    def take(self, size_bytes: int) -> None:
        """Count bytes in."""
        self.in_flight_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes out again."""
        self.in_flight_bytes -= size_bytes
        assert self.in_flight_bytes >= 0, "more was given back than was taken"
