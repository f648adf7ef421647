"""For whom a client asks that is used by others: a gateway's callers, each with a ticket that nodes know him by.

A ticket comes of `Security.identify`, holds for a minute, and goes with each request of a client whose `router` is
`Security.for_caller`. Whoever has it renews it in time, and at once when a node refuses it: the request is repeated
meanwhile. Such a client shares the connections of the one that it was made of, and knows only what its caller may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from tidelog.auth.scram_password import Password
from tidelog.cluster.connection import Connection
from tidelog.cluster.throttle import LOOK_S, Throttle
from tidelog.errors import (
    NodeUnreachableError,
    OverloadedError,
    TicketRefusedError,
    TidelogError,
    UnauthenticatedError,
    error_of,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.features import ON_BEHALF

LOGINS_MAX: Final = 3
"""So often a login is begun that nodes do not go on with."""


class Caller(Protocol):
    """Somebody on whose behalf a client asks."""

    @property
    def principal(self) -> str:
        """His name."""
        ...

    def ticket(self) -> bytes:
        """Return what shows nodes who he is.

        Raises:
            TidelogError: he is nobody any more, and why.
        """
        ...

    def refused(self, ticket: bytes) -> None:
        """A node does not take this ticket: get another one, soon."""


class Naming:
    """Says in each request for whom it is.

    Args:
        caller: who; None: the client itself, of which nothing is said.
    """

    def __init__(self, caller: Caller | None) -> None:
        self.caller = caller
        self.is_throttled = False
        """Whether a node has said anything of the caller's quota."""
        self._throttles: WeakKeyDictionary[Connection, Throttle] = WeakKeyDictionary()
        """What nodes have said of the caller's quota, beside that of the connections, which others share."""

    def name(self, envelope: pb.Envelope, connection: Connection) -> None:
        """Let a request that is about to be sent name the caller.

        Raises:
            TidelogError: he is nobody any more, or the node would take the request for the client's own.
        """
        if self.caller is not None:
            if ON_BEHALF not in connection.greeting.features:
                raise NodeUnreachableError(f"{connection.name} is of a release that does not know of callers")
            envelope.on_behalf = self.caller.ticket()

    def throttles(self, connection: Connection) -> list[Throttle]:
        """Return what holds up what is published over a connection: the client's own quota, and the caller's."""
        own = self._throttles.get(connection)
        return [throttle for throttle in (connection.throttle, own) if throttle is not None]

    def heard(self, envelope: pb.Envelope, connection: Connection) -> None:
        """Note what an answer says of the caller's quota."""
        if envelope.caller_throttle_ms or connection in self._throttles:
            self._throttle(connection).heard(envelope, envelope.caller_throttle_ms)

    def refused(self, error: OverloadedError, connection: Connection) -> bool:
        """Note that a node takes nothing of the caller for so long; False: that is a matter of a moment."""
        if self.caller is None or error.retry_after_ms <= LOOK_S * 1000:
            return False
        self._throttle(connection).hold(error.retry_after_ms)
        return True

    def _throttle(self, connection: Connection) -> Throttle:
        throttle = self._throttles.get(connection)
        if throttle is None:
            loop = asyncio.get_running_loop()
            whose = "this client" if self.caller is None else repr(self.caller.principal)
            throttle = Throttle(loop, connection.name, connection.count_throttled, whose=whose)
            self._throttles[connection] = throttle
            self.is_throttled = True
        return throttle

    def learn_from(self, envelope: pb.Envelope, error: TidelogError) -> None:
        """Note what the answer to a request says of its ticket."""
        if self.caller is not None and isinstance(error, TicketRefusedError):
            self.caller.refused(envelope.on_behalf)


@dataclass(frozen=True, slots=True)
class Identified:
    """Who somebody is.

    Attributes:
        principal: his name.
        expires_us: when his credentials end, in microseconds since 1970; None: they do not.
        ticket: shows nodes who he is.
        ticket_s: for how long, in seconds from now.
    """

    principal: str
    expires_us: int | None
    ticket: bytes = field(repr=False)
    ticket_s: float


class NotIdentifiedError(Exception):
    """Nobody whom the cluster knows has shown these credentials.

    Attributes:
        error: what he is to be told.
    """

    def __init__(self, error: TidelogError) -> None:
        super().__init__(str(error))
        self.error = error


def parse_identify_reply(reply: pb.IdentifyReply) -> Identified:
    """Return what a node says of credentials.

    Raises:
        NotIdentifiedError: that they are wrong.
    """
    if reply.HasField("error"):
        raise NotIdentifiedError(error_of(reply.error))
    return Identified(reply.principal, reply.expires_us or None, reply.ticket, reply.ticket_ms / 1000)


async def identify_by_password(
    ask: Callable[[pb.Identify], Awaitable[pb.IdentifyReply]], password: Password
) -> Identified:
    """Return who knows a password, by proving to the cluster that this client has it (SCRAM-SHA-256, ADR 0094).

    Args:
        ask: sends IDENTIFY to any node, and returns its answer.
        password: of the caller.

    Raises:
        NotIdentifiedError: nobody who has such a password.
        UnauthenticatedError: a node has not proven that it knows the user.
        TidelogError: as `ask`; or nodes do not go on with what has begun.
    """
    reply = pb.IdentifyReply()
    for _ in range(LOGINS_MAX):
        shown = await password.shown()
        reply = await ask(pb.Identify(credentials=shown.credentials))
        if not reply.HasField("challenge"):
            parse_identify_reply(reply)
            raise NodeUnreachableError("a node answers a login as no node does that knows of passwords")
        try:
            answer = await shown.answer(reply.challenge)
        except UnauthenticatedError as error:
            raise NotIdentifiedError(error) from error
        reply = await ask(pb.Identify(credentials=answer, login=reply.login))
        if reply.error.code == pb.EPOCH_CHANGING:
            continue
        found = parse_identify_reply(reply)
        shown.check(pb.HelloReply(scram=reply.scram))
        return found
    raise error_of(reply.error)
