"""HELLO: authentication and setup of a client connection."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.authenticator import Authenticator
from tidelog_broker.server.audited_requests import request_origin
from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.errors import ProtocolError
from tidelog_proto.hello_features import KEYED_REQUESTS, NEWEST_RECORD, ON_BEHALF, TYPED_TOPICS
from tidelog_proto.limits import BATCH_BYTES_MAX, CLIENT_ID_BYTES_MAX, FRAME_BYTES_MAX, PROTOCOL_VERSION
from tidelog_proto.version import NODE_SOFTWARE


def hello(broker: Broker, request: Request) -> Coroutine[Any, Any, None] | None:
    """Handle HELLO: answer now, or, if the client has to be authenticated, return the coroutine that does so.

    Raises:
        ProtocolError: UNSUPPORTED_VERSION or INVALID_REQUEST.
    """
    message = request.envelope.hello
    if message.version != PROTOCOL_VERSION:
        raise ProtocolError(
            pb.UNSUPPORTED_VERSION,
            f"protocol version {message.version} is not supported; this node uses version {PROTOCOL_VERSION}: use a "
            "client of the node's release",
        )
    if len(message.client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a client id must have at most {CLIENT_ID_BYTES_MAX} bytes, got {len(message.client_id.encode())}",
        )
    connection = request.connection
    if not connection.greeted and broker.security.authenticator is not None:
        if connection.greeting:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                "the previous HELLO of this connection is still being processed; wait for its answer",
            )
        connection.greeting = True
        return _authenticated(broker, request, broker.security.authenticator)
    _greet(broker, request, connection)
    return None


async def _authenticated(broker: Broker, request: Request, authenticator: Authenticator) -> None:
    """Authenticate a client and complete HELLO, or answer the client's first SCRAM message with a challenge.

    A failed attempt is answered and ends the connection.
    """
    connection, credentials = request.connection, request.envelope.hello.credentials
    proof = ""
    try:
        if connection.login is not None:
            session, proof = await logged_in(broker, authenticator, connection.login, credentials)
        elif credentials.WhichOneof("kind") == "scram":
            connection.login = authenticator.logins.begin(credentials.scram)
            connection.greeting = False
            request.reply(pb.Envelope(hello_challenge=connection.login.challenge))
            return
        else:
            session = await _session_of(broker, authenticator, request)
    except ProtocolError as error:
        if error.code in {pb.UNAUTHENTICATED, pb.CREDENTIALS_EXPIRED}:
            broker.metrics.unauthenticated.inc()
            broker.audit.unknown(error.message, request.envelope.hello.client_id, request_origin(connection))
        request.fail(error)
        connection.close()
        return
    if connection.is_open:
        connection.begin_session(session, time.time_ns() // 1000)
    _greet(broker, request, connection, proof)


async def _session_of(broker: Broker, authenticator: Authenticator, request: Request) -> Session:
    """Return the session of a client from its credentials or, if it has sent none, from its certificate.

    Raises:
        ProtocolError: see `session_of`.
    """
    credentials = request.envelope.hello.credentials
    if credentials.WhichOneof("kind") is None:
        certified = broker.security.certificates.session_of(request.connection.certificate())
        if certified is not None:
            return certified
    return await session_of(broker, authenticator, credentials, request.connection.host)


async def session_of(broker: Broker, authenticator: Authenticator, credentials: pb.Credentials, host: str) -> Session:
    """Return the session for credentials; this node applies all of `__meta` before it refuses an API key.

    Raises:
        ProtocolError: see `Authenticator.session_of`; EPOCH_CHANGING if `__meta` cannot be read yet.
    """
    address, heard = counted_address(host), broker.security.registry.changes
    try:
        return await authenticator.session_of(credentials, address=address)
    except ProtocolError as error:
        if error.code != pb.UNAUTHENTICATED or not credentials.api_key:
            raise
        if not await _knows_all(broker):
            raise _yet_to_hear() from error
        if broker.security.registry.changes == heard:  # Nothing new is known, so a wrong secret is not hashed again.
            raise
    return await authenticator.session_of(credentials, address=address)


async def logged_in(
    broker: Broker, authenticator: Authenticator, login: Login, credentials: pb.Credentials
) -> tuple[Session, str]:
    """Return the session of a client that has proven its password, and the node's SCRAM proof for the client.

    Raises:
        ProtocolError: UNAUTHENTICATED for credentials other than SCRAM; see `ScramLogins.finish`; EPOCH_CHANGING if
            this node may not know the user or its newest password yet.
    """
    if credentials.WhichOneof("kind") != "scram":
        raise ProtocolError(
            pb.UNAUTHENTICATED,
            "HELLO after HELLO_CHALLENGE must continue the exchange with a scram proof, got credentials of kind "
            f"{credentials.WhichOneof('kind')}",
        )
    try:
        return authenticator.logins.finish(login, credentials.scram)
    except ProtocolError as error:
        if not await _knows_all(broker) or authenticator.logins.has_changed(login):
            raise _yet_to_hear() from error
        raise


async def _knows_all(broker: Broker) -> bool:
    """Apply all of `__meta`; return whether that was possible, so that this node knows all identities."""
    if broker.lifecycle.starting:
        return False
    return broker.cluster.is_alone or await broker.meta_freshness.is_current()


def _yet_to_hear() -> ProtocolError:
    what = "this node has not loaded all users and keys yet; retry, or use another node"
    return ProtocolError(pb.EPOCH_CHANGING, what, retry_after_ms=100)


def _greet(broker: Broker, request: Request, connection: Connection, proof: str = "") -> None:
    if not connection.greeted and connection.is_open:
        if broker.bounds.open_clients >= broker.settings.connections_max:
            request.fail(too_many(broker))
            connection.close()
            return
        try:
            broker.accounts.join(connection, connection.host, connection.session)
        except ProtocolError as error:
            request.fail(error)
            connection.close()
            return
        broker.bounds.open_clients += 1
        message = request.envelope.hello
        connection.reads_typed = TYPED_TOPICS in message.features
        connection.greet(message.client_id, message.software, frame_bytes_max=FRAME_BYTES_MAX)
    session = connection.session
    bound = None if connection.meter is None else connection.meter.limits.produce_bytes
    request.reply(
        pb.Envelope(
            hello_reply=pb.HelloReply(
                version=PROTOCOL_VERSION,
                node_id=broker.node_id,
                cluster_id=broker.cluster_id,
                incarnation=broker.incarnation,
                software=NODE_SOFTWARE,
                features=[ON_BEHALF, KEYED_REQUESTS, NEWEST_RECORD, TYPED_TOPICS],
                frame_bytes_max=FRAME_BYTES_MAX,
                batch_bytes_max=BATCH_BYTES_MAX,
                principal="" if session is None else session.principal,
                expires_us=0 if session is None else session.expires_us,
                scram=proof,
                produce_bytes=bound or 0,
            )
        )
    )


def too_many(broker: Broker) -> ProtocolError:
    """Return the error for a client beyond the connection limit."""
    return ProtocolError(
        pb.OVERLOADED,
        f"the node has reached its limit of {broker.settings.connections_max} connections; retry, or use another node",
        retry_after_ms=1000,
    )
