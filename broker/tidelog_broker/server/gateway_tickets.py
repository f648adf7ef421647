"""Gateway tickets: the session and the limits of the caller that a gateway acts for.

A verified ticket is cached by its bytes. Conditions that may change are checked at each request: the gateway's
permission, the caller's identity and the expiry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.registry import KEY, USER
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.wire.caller_shares import CallerShares
from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

TICKETS_MAX: Final = 4_096
"""Maximum number of cached tickets, a few megabytes; beyond it those that were verified first are dropped, and verified
again when used."""


class _CachedTicket(NamedTuple):
    holder: str
    session: Session
    ends_us: int


class GatewayTickets:
    """Verifies the tickets that gateways present, and returns the sessions of the callers that they name.

    Args:
        session_of: makes or finds the session of a caller.
        end_reason: returns why a session is no longer valid; "" if it is.
    """

    def __init__(
        self, broker: Broker, session_of: Callable[[pb.Caller], Session], end_reason: Callable[[Session], str]
    ) -> None:
        self._broker = broker
        self._session_of = session_of
        self._end_reason = end_reason
        self._cached: dict[bytes, _CachedTicket] = {}

    def session(self, connection: Connection, ticket: bytes) -> Session:
        """Return the session of the caller in a ticket that was presented on this connection.

        Raises:
            ProtocolError: INVALID_REQUEST if callers are not authenticated, FORBIDDEN if the gateway may not present
                tickets, TICKET_REFUSED for an invalid ticket, or if the caller's identity is no longer valid.
        """
        gateway = connection.session
        if gateway is None:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                "this node does not authenticate callers (auth = none), so it accepts no tickets; set auth = "
                "required on it",
            )
        gateway.check(pb.OP_IMPERSONATE, pb.RES_CLUSTER, "")
        now_us = time.time_ns() // 1000
        known = self._cached.get(ticket)
        if known is None or known.holder != gateway.principal or now_us >= known.ends_us:
            self._cached.pop(ticket, None)
            verified = self._broker.security.tickets.read(ticket, holder=gateway.principal, now_us=now_us)
            known = _CachedTicket(gateway.principal, self._session_of(verified.caller), verified.ends_us)
            self._cached[ticket] = known
            if len(self._cached) > TICKETS_MAX:
                del self._cached[next(iter(self._cached))]
        ended = self._end_reason(known.session) or self._unknown(known.session)
        if ended:
            raise ticket_refused(ended)
        return known.session

    def _unknown(self, session: Session) -> str:
        """Return why to refuse a session whose key or user this node does not know; "" if it knows the key or user.

        An unknown key or user is new or was deleted.
        """
        registry = self._broker.security.registry
        if not session.identity.startswith((KEY, USER)) or registry.vouches_for(session.identity, session.principal):
            return ""
        return "this node does not know the API key or user of the ticket"


def charge(broker: Broker, request: Request) -> None:
    """Charge a request to the caller that its ticket names.

    Raises:
        ProtocolError: OVERLOADED: the caller's limits are reached; see `CallerShares.take`.
    """
    connection, session = request.connection, request.session
    assert session is not None, "a ticket names a caller"
    if connection.shares is None:
        settings = broker.settings
        connection.shares = CallerShares(
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
