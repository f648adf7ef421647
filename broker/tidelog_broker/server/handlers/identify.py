"""IDENTIFY: authentication of a gateway's caller by the credentials that it has sent to the gateway.

For a password the gateway is the SCRAM client: it sends two requests, and between them it keeps the login, which the
node has sealed (ADR 0094).
"""

from __future__ import annotations

import time
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.security.tickets import TICKET_MS
from tidelog_broker.metadata.authenticator import Authenticator
from tidelog_broker.server.audited_requests import request_origin
from tidelog_broker.server.handlers.hello import logged_in, session_of
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_OF_CREDENTIALS: Final = frozenset({pb.UNAUTHENTICATED, pb.CREDENTIALS_EXPIRED})


async def identify(broker: Broker, request: Request) -> None:
    """Handle IDENTIFY. An error of the caller's credentials is part of the answer.

    Raises:
        ProtocolError: INVALID_REQUEST if this node does not authenticate callers; another error if it cannot check the
            credentials now.
    """
    authenticator, gateway = broker.security.authenticator, request.connection.session
    if authenticator is None or gateway is None:
        raise ProtocolError(pb.INVALID_REQUEST, "this node does not authenticate callers; set auth = required on it")
    message = request.envelope.identify
    if message.only_revision:
        request.reply(pb.Envelope(identify_reply=pb.IdentifyReply(revision=_revision(broker))))
        return
    proof = ""
    try:
        if message.credentials.WhichOneof("kind") != "scram":
            session = await session_of(broker, authenticator, message.credentials, request.connection.host)
        elif not message.login:
            request.reply(pb.Envelope(identify_reply=_challenge(broker, authenticator, message, gateway)))
            return
        else:
            session, proof = await _proven(broker, authenticator, message, gateway)
    except _BeginAgainError:
        again = ProtocolError(
            pb.EPOCH_CHANGING,
            "this login has expired, was begun by another gateway, or its user has changed; start a new one",
        )
        request.reply(pb.Envelope(identify_reply=pb.IdentifyReply(error=again.to_message())))
        return
    except ProtocolError as error:
        if error.code not in _OF_CREDENTIALS:
            raise
        broker.metrics.unauthenticated.inc()
        about = request_origin(request.connection)._replace(through=gateway.principal)
        broker.audit.unknown(error.message, f"{request.connection.client_id} of {gateway.principal}", about)
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
        scram=proof,
    )
    request.reply(pb.Envelope(identify_reply=reply))


class _BeginAgainError(Exception):
    """Raised for a password login that has expired or belongs to another gateway, so that a new one is needed."""


def _challenge(
    broker: Broker, authenticator: Authenticator, message: pb.Identify, gateway: Session
) -> pb.IdentifyReply:
    login = authenticator.logins.begin(message.credentials.scram)
    now_us = time.time_ns() // 1000
    sealed = broker.security.sealed_logins.sealed(
        message.credentials.scram, login, holder=gateway.principal, now_us=now_us
    )
    return pb.IdentifyReply(challenge=login.challenge, login=sealed)


async def _proven(
    broker: Broker, authenticator: Authenticator, message: pb.Identify, gateway: Session
) -> tuple[Session, str]:
    """Return the session of a caller that has proven its password, and the node's SCRAM proof for the caller.

    Raises:
        ProtocolError: see `logged_in`.
        _BeginAgainError: the login has expired, was begun by another gateway, or its user has changed.
    """
    now_us = time.time_ns() // 1000
    state = broker.security.sealed_logins.opened(message.login, holder=gateway.principal, now_us=now_us)
    login = None if state is None else authenticator.logins.go_on(state)
    if login is None:
        raise _BeginAgainError
    return await logged_in(broker, authenticator, login, message.credentials)


def _revision(broker: Broker) -> bytes:
    """Return a value that differs between nodes and changes with each start and each security change."""
    return f"{broker.node_id}/{broker.incarnation}/{broker.security.registry.changes}".encode()
