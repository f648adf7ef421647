"""For whom a gateway asks: from a ticket to the session of the caller that it names, and to what he may have.

A ticket is verified once and remembered by its bytes; what may change meanwhile (that the gateway may show it, that the
caller's identity stands, the time) is looked at with each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.registry import KEY, USER
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.wire.connection import Connection, Request
from tidelog_broker.wire.shares import Shares
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

TICKETS_MAX: Final = 4_096
"""Tickets that are remembered, some megabytes; beyond it the oldest are verified anew."""


class _Known(NamedTuple):
    holder: str
    session: Session
    ends_us: int


class OnBehalf:
    """The callers of gateways.

    Args:
        broker: of this node.
        session_of: makes or finds the session of a caller.
        why_over: says why a session must end; "" while it need not.
    """

    def __init__(
        self, broker: Broker, session_of: Callable[[pb.Caller], Session], why_over: Callable[[Session], str]
    ) -> None:
        self._broker = broker
        self._session_of = session_of
        self._why_over = why_over
        self._known: dict[bytes, _Known] = {}

    def session(self, connection: Connection, ticket: bytes) -> Session:
        """Return the session of the caller that a ticket names, which was shown on this connection.

        Raises:
            ProtocolError: INVALID_REQUEST where callers have no names, FORBIDDEN to who may not show tickets,
                TICKET_REFUSED for a ticket that does not count, or whose caller's identity has ended.
        """
        gateway = connection.session
        if gateway is None:
            raise ProtocolError(pb.INVALID_REQUEST, "a ticket says who asks, and nobody is asked that here")
        gateway.check(pb.OP_IMPERSONATE, pb.RES_CLUSTER, "")
        now_us = time.time_ns() // 1000
        known = self._known.get(ticket)
        if known is None or known.holder != gateway.principal or now_us >= known.ends_us:
            self._known.pop(ticket, None)
            shown = self._broker.security.tickets.read(ticket, holder=gateway.principal, now_us=now_us)
            known = _Known(gateway.principal, self._session_of(shown.caller), shown.ends_us)
            self._known[ticket] = known
            if len(self._known) > TICKETS_MAX:
                del self._known[next(iter(self._known))]
        over = self._why_over(known.session) or self._unknown(known.session)
        if over:
            raise ticket_refused(over)
        return known.session

    def _unknown(self, session: Session) -> str:
        """Say that there is no record of a key or user here: not yet, or not any more, as snapshots leave those out."""
        registry = self._broker.security.registry
        if not session.identity.startswith((KEY, USER)) or registry.vouches_for(session.identity, session.principal):
            return ""
        return "this node does not know the API key, or the user"


def charge(broker: Broker, request: Request) -> None:
    """Charge a request to the caller that its ticket names, and who has been found.

    Raises:
        ProtocolError: OVERLOADED, it is early; see `Shares.take`.
    """
    connection, session = request.connection, request.session
    assert session is not None, "a ticket names somebody"
    if connection.shares is None:
        settings = broker.settings
        connection.shares = Shares(
            requests_max=settings.requests_in_flight, bytes_max=settings.connection_in_flight_bytes
        )
        if connection.account is not None:
            connection.account.share()
    connection.shares.take(
        request,
        broker.accounts.of_caller(session),
        requests=connection.requests_in_flight,
        size_bytes=connection.in_flight_bytes,
    )
