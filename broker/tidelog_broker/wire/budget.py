"""A budget of bytes in flight that is checked before memory is allocated.

A request counts with its attachment, and with its envelope if that is large: an envelope has up to 1 MiB, and a waiting
request holds it. Smaller envelopes are bounded by the number of requests. A request with a small envelope and no
attachment (for metadata or positions) is always admitted, because such requests can end an overload.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

SMALL_ENVELOPE_BYTES: Final = 4 * KIB
"""Envelopes up to this size are not counted."""
OVERLOADED_RETRY_MS: Final = 50


def overloaded() -> ProtocolError:
    """Return the error of a request that does not fit the node's budget."""
    return ProtocolError(
        pb.OVERLOADED,
        "the node's budget of requests in flight is exhausted; retry",
        retry_after_ms=OVERLOADED_RETRY_MS,
    )


class Budget:
    """A count of bytes with a limit; a node has one for its clients and one for other nodes."""

    __slots__ = ("bytes_max", "in_flight_bytes")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.in_flight_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more fit. A single request always fits an empty budget."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes + size_bytes <= self.bytes_max

    def admit(self, size_bytes: int) -> bool:
        """Count bytes if they fit; a request of zero bytes is always admitted."""
        before = self.in_flight_bytes
        if before and size_bytes and before + size_bytes > self.bytes_max:
            return False
        self.in_flight_bytes = before + size_bytes
        return True

    def take(self, size_bytes: int) -> None:
        """Count bytes without checking the limit."""
        self.in_flight_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release counted bytes."""
        self.in_flight_bytes -= size_bytes
        assert self.in_flight_bytes >= 0, "released more bytes than were counted"
