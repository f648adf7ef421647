"""Requests that a gateway sends on behalf of other principals, its callers; a ticket identifies the principal.

`Security.identify` returns a ticket that is valid for a minute and is sent with each request of a client whose `router`
was returned by `Security.for_caller`. A `Caller` holds the ticket and renews it in time, and immediately when a node
refuses it; the client retries the refused request. Such a client shares the connections of the gateway's client and has
a metadata cache of its own, which holds only what the principal may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from tidelog.auth.scram_password import Password
from tidelog.cluster.connection import Connection
from tidelog.cluster.throttle import CHECK_INTERVAL_S, Throttle
from tidelog.errors import (
    NodeUnreachableError,
    OverloadedError,
    TicketRefusedError,
    TidelogError,
    UnauthenticatedError,
    error_of,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.hello_features import ON_BEHALF

LOGINS_MAX: Final = 3
"""Maximum number of attempts of a login: its second step fails at a node that lacks the state of the first one."""


class Caller(Protocol):
    """Provides the name and the tickets of the principal on whose behalf `Client` sends requests."""

    @property
    def principal(self) -> str:
        """The principal's name."""
        ...

    def ticket(self) -> bytes:
        """Return the ticket that identifies the principal to nodes.

        Raises:
            TidelogError: the principal's credentials are no longer valid.
        """
        ...

    def refused(self, ticket: bytes) -> None:
        """Renew the ticket, because a node has refused it."""


class CallerTickets:
    """Attaches the ticket of a gateway's caller to requests, and applies the quota of this principal.

    Each client has one, also a client without a caller: it attaches nothing then, and `throttles` returns only the
    throttle of the connection.

    Args:
        caller: the principal; None for the client's own requests, which carry no ticket.
    """

    def __init__(self, caller: Caller | None) -> None:
        self.caller = caller
        self.is_throttled = False
        """Whether a node has reported a quota of the principal."""
        self._throttles: WeakKeyDictionary[Connection, Throttle] = WeakKeyDictionary()
        """The principal's throttle by connection, in addition to that of the connection, which all principals share."""

    def attach(self, envelope: pb.Envelope, connection: Connection) -> None:
        """Attach the ticket to a request.

        Raises:
            TidelogError: the principal's credentials are no longer valid, or the node does not support such requests.
        """
        if self.caller is not None:
            if ON_BEHALF not in connection.greeting.features:
                raise NodeUnreachableError(
                    f"node {connection.name} runs a release that does not support requests on behalf of another "
                    "principal; upgrade the node"
                )
            envelope.on_behalf = self.caller.ticket()

    def throttles(self, connection: Connection) -> list[Throttle]:
        """Return the throttles of a publish on a connection: the connection's, and the caller's principal's if any."""
        own = self._throttles.get(connection)
        return [throttle for throttle in (connection.throttle, own) if throttle is not None]

    def note_throttle(self, envelope: pb.Envelope, connection: Connection) -> None:
        """Pause the principal's publishes for as long as an answer requires."""
        if envelope.caller_throttle_ms or connection in self._throttles:
            self._throttle(connection).heard(envelope, envelope.caller_throttle_ms)

    def note_rejection(self, error: OverloadedError, connection: Connection) -> bool:
        """Pause the principal's publishes if a node rejects them for more than `CHECK_INTERVAL_S`.

        Returns:
            False if nothing is paused: the rejection is not longer, or requests are the client's own.
        """
        if self.caller is None or error.retry_after_ms <= CHECK_INTERVAL_S * 1000:
            return False
        self._throttle(connection).hold(error.retry_after_ms)
        return True

    def _throttle(self, connection: Connection) -> Throttle:
        throttle = self._throttles.get(connection)
        if throttle is None:
            loop = asyncio.get_running_loop()
            principal = "this client" if self.caller is None else repr(self.caller.principal)
            throttle = Throttle(loop, connection.name, connection.count_throttled, principal=principal)
            self._throttles[connection] = throttle
            self.is_throttled = True
        return throttle

    def note_error(self, envelope: pb.Envelope, error: TidelogError) -> None:
        """Report a refused ticket to `Caller.refused`, which renews the ticket."""
        if self.caller is not None and isinstance(error, TicketRefusedError):
            self.caller.refused(envelope.on_behalf)


@dataclass(frozen=True, slots=True)
class Identified:
    """The principal to which credentials belong, and the ticket for requests on its behalf.

    Attributes:
        expires_us: when the credentials expire, µs since 1970; None if they do not.
        ticket: identifies the principal to nodes.
        ticket_s: how long the ticket is valid, in seconds from now.
    """

    principal: str
    expires_us: int | None
    ticket: bytes = field(repr=False)
    ticket_s: float


class NotIdentifiedError(Exception):
    """Raised if the credentials belong to no known principal.

    Attributes:
        error: the error that the gateway returns to the client that sent the credentials.
    """

    def __init__(self, error: TidelogError) -> None:
        super().__init__(str(error))
        self.error = error


def parse_identify_reply(reply: pb.IdentifyReply) -> Identified:
    """Return the principal that a node reports for credentials.

    Raises:
        NotIdentifiedError: the credentials are wrong.
    """
    if reply.HasField("error"):
        raise NotIdentifiedError(error_of(reply.error))
    return Identified(reply.principal, reply.expires_us or None, reply.ticket, reply.ticket_ms / 1000)


async def identify_by_password(
    ask: Callable[[pb.Identify], Awaitable[pb.IdentifyReply]], password: Password
) -> Identified:
    """Prove a password to the cluster by SCRAM-SHA-256 (ADR 0094) and return its principal.

    Args:
        ask: sends IDENTIFY to any node, and returns its answer.

    Raises:
        NotIdentifiedError: the user does not exist or the password is wrong.
        UnauthenticatedError: the node has not proven that it knows the user.
        NodeUnreachableError: a node's release does not support passwords.
        TidelogError: as `ask`; or each attempt's second step reached a node that had not processed the first one.
    """
    reply = pb.IdentifyReply()
    for _ in range(LOGINS_MAX):
        exchange = await password.shown()
        reply = await ask(pb.Identify(credentials=exchange.credentials))
        if not reply.HasField("challenge"):
            parse_identify_reply(reply)
            raise NodeUnreachableError(
                "a node did not answer a password login with a SCRAM challenge, because its release does not support "
                "passwords; upgrade all nodes"
            )
        try:
            answer = await exchange.answer(reply.challenge)
        except UnauthenticatedError as error:
            raise NotIdentifiedError(error) from error
        reply = await ask(pb.Identify(credentials=answer, login=reply.login))
        if reply.error.code == pb.EPOCH_CHANGING:
            continue
        identified = parse_identify_reply(reply)
        exchange.check(pb.HelloReply(scram=reply.scram))
        return identified
    raise error_of(reply.error)
