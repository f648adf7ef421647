"""Charging what a request costs the event loop to its caller, from before its work begins until it is answered.

A request whose parts have to be done in the order of arrival, before any later request, is not done in a task but as
the `Rest` of its connection: in its caller's turns of reading (`rounds`), one piece after the other.

While the requests of a caller that are being worked on cost a second together (`account.WORK_US_MAX`), nothing more is
read from its connections; of a caller of a gateway, whose connection is not only its own, more is refused.
"""

from __future__ import annotations

from typing import Protocol

from tidelog_broker.wire.account import Account, Client
from tidelog_broker.wire.rounds import WORK_BYTES_PER_US, Turn
from tidelog_broker.wire.shares import busy


class Divided(Protocol):
    """A request that its connection works on in pieces, in its caller's turns of reading."""

    def piece(self) -> bool:
        """Do a piece, count it in the turn, and return whether it was the last one."""
        ...

    def drop(self) -> None:
        """Discard the remaining work: the connection is closed, and no answer can be sent."""


class Rest:
    """The remaining pieces of the request that a connection has taken last."""

    __slots__ = ("_request",)

    def __init__(self) -> None:
        self._request: Divided | None = None

    def begin(self, request: Divided) -> None:
        """Work on a request before any later one is taken."""
        assert self._request is None, "a request was taken before the previous one was done"
        self._request = request

    def is_done(self, turn: Turn) -> bool:
        """Work on as long as the caller's turn lasts; return whether nothing is left."""
        while self._request is not None:
            if turn.is_over:
                return False
            if self._request.piece():
                self._request = None
        return True

    def drop(self) -> None:
        """Drop what is left, if anything."""
        request, self._request = self._request, None
        if request is not None:
            request.drop()


class WorkingConnection(Client, Protocol):
    """A connection, as it is seen from here."""

    def took(self, size_bytes: int) -> None:
        """Count bytes, or work as bytes, in its caller's turn of reading."""


class Working(Protocol):
    """A request, as it is seen from here."""

    account: Account | None
    """That of the caller for whom a gateway asks."""
    work_of: Account | None
    """Where its work is counted, if that is not the connection's account."""
    work_us: int

    @property
    def connection(self) -> WorkingConnection:
        """Where it came from."""
        ...


def begin_work(request: Working, work_us: int, *, uninterrupted_us: int) -> None:
    """Charge a request whose work is about to begin.

    Args:
        request: the request.
        work_us: what it costs the event loop.
        uninterrupted_us: what of it counts in this turn of reading: all, unless it is done in several turns.

    Raises:
        ProtocolError: OVERLOADED, too much of a gateway's caller is being worked on; nothing was charged.
    """
    connection, caller = request.connection, request.account
    if caller is not None:
        if caller.is_working:
            raise busy(caller)
        request.work_of = caller
        caller.work_us += work_us
    else:
        connection.work_us += work_us
        if connection.account is not None:
            connection.account.began_work(connection, work_us)
    request.work_us = work_us
    connection.took(WORK_BYTES_PER_US * uninterrupted_us)


def end_work(request: Working) -> None:
    """Charge a request no more; nothing happens for one that was not charged."""
    work_us, request.work_us = request.work_us, 0
    if not work_us:
        return
    caller, request.work_of = request.work_of, None
    if caller is not None:
        caller.ended_work(work_us)
        return
    connection = request.connection
    connection.work_us -= work_us
    if connection.account is not None:
        connection.account.ended_work(work_us)
