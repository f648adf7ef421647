"""A body that is received before the task of its request begins.

A program that publishes columns sends the same head with each body. If a head equals, byte for byte, the head of the
connection's previous request, and the body of that request was received into memory, the application would admit the
new request, too: admission depends only on the head and on the request budget. So the connection reserves the memory
itself and receives the body at once, and the task begins with a complete request. If the body does not arrive
completely, the request begins without it, as every other request does.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from starlette.types import Scope

from tidelog_gateway.budget.request_budget import BodyReservation
from tidelog_gateway.http1.head import Head
from tidelog_proto.process.buffers import allocate


class RepeatedHead(NamedTuple):
    """The head of a request whose body was received into memory.

    Attributes:
        head: the parsed head.
        raw: the bytes of the head.
        scope: the ASGI scope of a request with this head, without the request's state.
        notes: values that the application keeps for further requests with this head, such as the topic in its path.
    """

    head: Head
    raw: bytes
    scope: Scope
    notes: dict[str, Any]

    def new_scope(self) -> Scope:
        """Return the scope of another request with this head."""
        return {**self.scope, "headers": self.head.headers.copy()}


class EarlyBody:
    """A body of known length that is received before the task of its request begins.

    Args:
        repeated: the head of the body's request.
        arrival: the reservation of the body's length in the request budget.
        part: the first bytes of the body, received together with the head. They are reported to `arrival` with the next
            bytes.

    Attributes:
        repeated: the head of the body's request.
        arrival: the reservation of the body's length in the request budget.
        place: the buffer for the whole body.
        arrived_bytes: number of bytes of the body that have been received.
        began_s: when the head was received, on the clock of `time.monotonic`.
    """

    __slots__ = ("arrival", "arrived_bytes", "began_s", "place", "repeated")

    def __init__(self, repeated: RepeatedHead, arrival: BodyReservation, part: bytes) -> None:
        self.repeated = repeated
        self.arrival = arrival
        self.place = allocate(repeated.head.length)
        self.arrived_bytes = len(part)
        self.place[: self.arrived_bytes] = part
        self.began_s = time.monotonic()

    def received(self, size_bytes: int) -> None:
        """Note the next received bytes."""
        self.arrived_bytes += size_bytes
        self.arrival.received(self.arrived_bytes)
