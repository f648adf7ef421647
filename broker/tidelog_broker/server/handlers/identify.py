"""IDENTIFY: a gateway asks who its caller is, by the credentials that he has sent it."""

from __future__ import annotations

import time
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.tickets import TICKET_MS
from tidelog_broker.server.handlers.hello import session_of
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_OF_CREDENTIALS: Final = frozenset({pb.UNAUTHENTICATED, pb.CREDENTIALS_EXPIRED})


async def identify(broker: Broker, request: Request) -> None:
    """Handle IDENTIFY. What is wrong with the caller's credentials is told in the answer.

    Raises:
        ProtocolError: INVALID_REQUEST where callers have no names; what keeps this node from knowing.
    """
    authenticator, gateway = broker.security.authenticator, request.connection.session
    if authenticator is None or gateway is None:
        raise ProtocolError(pb.INVALID_REQUEST, "this node asks nobody who they are: set auth to required there")
    if request.envelope.identify.only_revision:
        request.reply(pb.Envelope(identify_reply=pb.IdentifyReply(revision=_revision(broker))))
        return
    try:
        session = await session_of(broker, authenticator, request.envelope.identify.credentials)
    except ProtocolError as error:
        if error.code not in _OF_CREDENTIALS:
            raise
        broker.metrics.unauthenticated.inc()
        broker.audit.unknown(error.message, f"{request.connection.client_id} of {gateway.principal}")
        request.reply(pb.Envelope(identify_reply=pb.IdentifyReply(error=error.to_message())))
        return
    now_us = time.time_ns() // 1000
    ticket = broker.security.tickets.signed(session.caller(), holder=gateway.principal, now_us=now_us)
    reply = pb.IdentifyReply(
        principal=session.principal,
        expires_us=session.expires_us,
        ticket=ticket,
        ticket_ms=TICKET_MS,
        revision=_revision(broker),
    )
    request.reply(pb.Envelope(identify_reply=reply))


def _revision(broker: Broker) -> bytes:
    """Return what is another one with each change, with each start, and at each node."""
    return f"{broker.node_id}/{broker.incarnation}/{broker.security.registry.changes}".encode()
