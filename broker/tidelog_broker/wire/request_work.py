"""Charging of a request's event-loop time to its caller, from its start until it is answered.

A request whose parts must be processed in order of arrival, before any later request, does not run in a task but as
the `RemainingWork` of its connection: slice by slice, in its caller's read turns (`read_turns`).

While the unanswered requests of a caller cost one second together (`account.WORK_US_MAX`), nothing more is read from
its connections. For a gateway's caller, which shares its connection with others, further requests are refused.
"""

from __future__ import annotations

from typing import Protocol

from tidelog_broker.wire.caller_shares import busy
from tidelog_broker.wire.quota_account import Account, Client
from tidelog_broker.wire.read_turns import WORK_BYTES_PER_US, ReadTurn


class Divided(Protocol):
    """A request that its connection processes in slices, in its caller's read turns."""

    def next_slice(self) -> bool:
        """Handle the next entries, charge their cost to the read turn, and return whether they were the last."""
        ...

    def drop(self) -> None:
        """Discard the remaining work: the connection is closed, and no answer can be sent."""


class RemainingWork:
    """The remaining slices of a connection's last request."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: Divided | None = None
        """None when all work is done."""

    def begin(self, request: Divided) -> None:
        """Start a request that is finished before any later one is dispatched."""
        assert self.request is None, "a request was dispatched before the previous one was done"
        self.request = request

    def is_done(self, turn: ReadTurn) -> bool:
        """Run slices until the caller's turn is over; return whether all work is done."""
        while self.request is not None:
            if turn.is_over:
                return False
            if self.request.next_slice():
                self.request = None
        return True

    def drop(self) -> None:
        """Discard the remaining work, if any."""
        request, self.request = self.request, None
        if request is not None:
            request.drop()


class WorkingConnection(Client, Protocol):
    """The interface of a connection."""

    def took(self, size_bytes: int) -> None:
        """Count bytes, or work as bytes, in its caller's read turn."""


class Working(Protocol):
    """The interface of a request."""

    account: Account | None
    """The account of a gateway's caller."""
    work_of: Account | None
    """The account that the request's work is charged to, if that is not the connection's."""
    work_us: int

    @property
    def connection(self) -> WorkingConnection:
        """The connection that the request arrived on."""
        ...


def begin_work(request: Working, work_us: int, *, uninterrupted_us: int) -> None:
    """Charge a request whose work is about to begin.

    Args:
        work_us: the request's cost in event-loop time.
        uninterrupted_us: the part that counts in this read turn: all of it, unless it is processed in several turns.

    Raises:
        ProtocolError: OVERLOADED, a gateway's caller has reached its limit of work; nothing was charged.
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
    """Release a request's charge; a request that was not charged is ignored."""
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
