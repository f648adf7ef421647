"""The budget of request bytes in flight; a node has one for its clients and one for other nodes.

A request counts with its attachment, and with its envelope if that is large: an envelope has up to 1 MiB, and a waiting
request holds it. Smaller envelopes are bounded by the number of requests. A client's request with a small envelope and
no attachment (for metadata or positions) is always admitted, because such requests can end an overload.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.flow.byte_budget import ByteBudget
from tidelog_proto.limits import KIB

SMALL_ENVELOPE_BYTES: Final = 4 * KIB
"""Envelopes up to this size are not counted."""
OVERLOADED_RETRY_MS: Final = 50


def overloaded() -> ProtocolError:
    """Return the error of a request that does not fit the node's budget, or the limits of another node's connection."""
    return ProtocolError(
        pb.OVERLOADED,
        "too many requests are in flight at this node, of all clients together (node_in_flight_bytes) or on this "
        "connection; retry",
        retry_after_ms=OVERLOADED_RETRY_MS,
    )


class Budget(ByteBudget):
    """A count of the bytes of requests in flight, with a limit."""

    __slots__ = ()

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more fit; a single request always fits."""
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self.bytes_max
