"""Charging what a request costs the event loop to its caller, from before its work begins until it is answered.

While the requests of a caller that are being worked on cost a second together (`account.WORK_US_MAX`), nothing more is
read from its connections; of a caller of a gateway, whose connection is not only its own, more is refused.
"""

from __future__ import annotations

from typing import Protocol

from tidelog_broker.core.request_costs import PIECE_US
from tidelog_broker.wire.account import Account, Client
from tidelog_broker.wire.rounds import WORK_BYTES_PER_US
from tidelog_broker.wire.shares import busy


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


def begin_work(request: Working, work_us: int, *, is_divided: bool) -> None:
    """Charge a request whose work is about to begin.

    Args:
        request: the request.
        work_us: what it costs the event loop.
        is_divided: whether it takes turns of its own, so that only a piece of it counts in the turn of reading.

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
    connection.took(WORK_BYTES_PER_US * (min(work_us, PIECE_US) if is_divided else work_us))


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
