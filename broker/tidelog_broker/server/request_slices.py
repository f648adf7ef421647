"""Processing of a request's entries in slices, between which the event loop serves other work.

A request with few entries is one slice and does not wait. A larger one waits before each slice until the fair scheduler
of the node (`ConnectionBounds.turns`) lets its caller continue. A larger request also ends when its result is no longer
needed: its connection is closed, or the node is stopping.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from tidelog_broker.broker import Broker
from tidelog_broker.core.request_costs import COSTS, SLICE_US
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

T = TypeVar("T")


class RequestSlices:
    """Divides the work of one request into slices.

    Args:
        count: the sum of the weights of the request's entries; the number of entries if they have no weights.
    """

    def __init__(self, broker: Broker, request: Request, count: int) -> None:
        self._broker = broker
        self._request = request
        self._left = 0
        self._why_ended = ""
        """Why the request has ended early; empty if it has not. The exception is not kept, because its traceback refers
        to all that the request has made so far, in a cycle that only a full garbage collection frees, which blocks the
        event loop."""
        kind = request.envelope.WhichOneof("kind") or ""
        self._entries = max(count, 1) if kind not in COSTS else COSTS[kind].slice_entries
        self._is_one = count <= self._entries

    async def step(self, weight: int = 1) -> None:
        """Wait for the fair scheduler if the next entry, of the given weight, begins a slice.

        Raises:
            ProtocolError: see `check_wanted`.
        """
        if self._is_one:
            return
        if self._why_ended:
            raise ProtocolError(pb.SHUTTING_DOWN, self._why_ended)
        if self._left <= 0:
            self._check()
            await self._broker.bounds.turns.next_slice(self._request.connection, self._request.payer, SLICE_US / 1e6)
            self._check()
            self._left = self._entries
        self._left -= weight

    def _check(self) -> None:
        try:
            check_wanted(self._broker, self._request)
        except ProtocolError as error:
            self._why_ended = error.message
            raise


async def in_slices(broker: Broker, request: Request, entries: Sequence[T]) -> AsyncIterator[T]:
    """Yield the entries of a request, in slices.

    Raises:
        ProtocolError: see `check_wanted`; the entries yielded so far have been processed.
    """
    slices = RequestSlices(broker, request, len(entries))
    for entry in entries:
        await slices.step()
        yield entry


def check_wanted(broker: Broker, request: Request) -> None:
    """Refuse to continue a request if the node is stopping or the request's connection is closed.

    Raises:
        ProtocolError: SHUTTING_DOWN; it reaches the client only if the connection is still open.
    """
    if broker.lifecycle.stopping:
        raise ProtocolError(
            pb.SHUTTING_DOWN,
            f"node {broker.node_id!r} is stopping and did not complete the request; retry at another node",
        )
    request.connection.end_if_gone()
    if not request.connection.is_open:
        raise ProtocolError(pb.SHUTTING_DOWN, "the connection was closed before the request was completed")
