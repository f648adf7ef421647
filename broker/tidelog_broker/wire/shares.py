"""A connection over which a gateway asks for its callers: each is charged by himself, and none has all of it.

What such a connection is not read for, all of them wait for. So nobody is made to wait by that for what one of them has
had too much of: his request is refused with OVERLOADED, and with when to send it again; nothing was done, and a gateway
of ours sends it then. What he may have in flight on the connection is as much as is free on it: one alone may have half
of it, two a third each, and who comes next finds as much again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog_broker.wire.account import Account
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

BUSY_RETRY_MS: Final = 50


class Charged(Protocol):
    """A request, as it is seen from here."""

    account: Account | None
    """Whose it is; set while it is charged."""
    size_bytes: int


@dataclass(slots=True)
class _Share:
    requests: int = 0
    size_bytes: int = 0


class Shares:
    """What the callers on one connection have in flight.

    Args:
        requests_max, bytes_max: what the connection may have in flight in all.
    """

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._shares: dict[Account, _Share] = {}

    def __len__(self) -> int:
        """Return how many callers have anything in flight."""
        return len(self._shares)

    def take(self, request: Charged, account: Account, *, requests: int, size_bytes: int) -> None:
        """Charge a request to its caller, until it is given back.

        Args:
            request: the request.
            account: the caller's.
            requests: what the connection has in flight, with this one.
            size_bytes: the same in bytes.

        Raises:
            ProtocolError: OVERLOADED: the caller has had too much, or has too much in flight. Nothing was charged.
        """
        share = self._shares.get(account)
        if share is not None:
            is_full = share.requests >= max(1, self._requests_max - requests)
            more_bytes = request.size_bytes and share.size_bytes and share.size_bytes + request.size_bytes
            if is_full or more_bytes > self._bytes_max - size_bytes:
                raise busy(account)
        if account.is_filled_by(request.size_bytes):
            raise busy(account)
        early_s = account.came_through(request.size_bytes)
        if early_s > 0:
            raise ProtocolError(
                pb.OVERLOADED,
                f"the quota of {account.name!r} is used up for {early_s:.1f} s: send again then",
                retry_after_ms=math.ceil(early_s * 1000),
            )
        if share is None:
            share = self._shares[account] = _Share()
        share.requests += 1
        share.size_bytes += request.size_bytes
        account.begin(request.size_bytes)
        request.account = account

    def give_back(self, request: Charged) -> None:
        """A request is answered; nothing happens for one that was not charged."""
        account, request.account = request.account, None
        if account is None:
            return
        share = self._shares[account]
        share.requests -= 1
        share.size_bytes -= request.size_bytes
        if not share.requests:
            del self._shares[account]
        account.end(request.size_bytes)


def busy(account: Account) -> ProtocolError:
    """Return the refusal of a request whose caller has as much in flight as it may."""
    return ProtocolError(
        pb.OVERLOADED,
        f"as many requests of {account.name!r} are being worked on as may be: send again",
        retry_after_ms=BUSY_RETRY_MS,
    )
