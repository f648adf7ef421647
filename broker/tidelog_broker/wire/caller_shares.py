"""Fair limits for the callers on a gateway's connection: each caller is charged alone, and none can use all of it.

Pausing reads on such a connection would delay all of its callers. So a request of a caller that exceeds its limits is
refused with OVERLOADED and a time to retry; nothing was done, and Tidelog's gateway retries then. A caller may have as
much in flight as the connection has free: a single caller can use half of the limit, two callers a third each, and the
same amount stays free for the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog_broker.wire.quota_account import Account
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

BUSY_RETRY_MS: Final = 50


class Charged(Protocol):
    """The interface that `CallerShares` requires of a request."""

    account: Account | None
    """The caller's account while the request is charged; None otherwise."""
    size_bytes: int
    """Bytes of the request that count as in flight."""
    work_us: int
    """Event-loop time that is charged for the request, in microseconds."""


@dataclass(slots=True)
class _Share:
    requests: int = 0
    size_bytes: int = 0


class CallerShares:
    """Counts the in-flight requests of each caller on one gateway's connection, and limits the share of each.

    Args:
        requests_max, bytes_max: in-flight limits of the connection.
    """

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._shares: dict[Account, _Share] = {}

    def __len__(self) -> int:
        """Return the number of callers with requests in flight."""
        return len(self._shares)

    def take(self, request: Charged, account: Account, *, requests: int, size_bytes: int) -> None:
        """Charge a request to its caller, until `give_back`.

        Args:
            requests, size_bytes: number and bytes of the connection's requests in flight, including this one.

        Raises:
            ProtocolError: OVERLOADED: the caller's quota is used up, or its unanswered requests have reached a limit.
                Nothing was charged.
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
                f"the quota of {account.name!r} is used up for {early_s:.1f} s; retry after that time",
                retry_after_ms=math.ceil(early_s * 1000),
            )
        if share is None:
            share = self._shares[account] = _Share()
        share.requests += 1
        share.size_bytes += request.size_bytes
        account.begin(request.size_bytes)
        request.account = account

    def give_back(self, request: Charged) -> None:
        """Release an answered request; a request that was not charged is ignored."""
        account, request.account = request.account, None
        if account is None:
            return
        work_us, request.work_us = request.work_us, 0
        if work_us:
            account.ended_work(work_us)
        share = self._shares[account]
        share.requests -= 1
        share.size_bytes -= request.size_bytes
        if not share.requests:
            del self._shares[account]
        account.end(request.size_bytes)


def begin_work(account: Account, work_us: int) -> None:
    """Charge a caller for a request whose work is about to begin.

    Raises:
        ProtocolError: OVERLOADED, the event-loop time of the caller's unanswered requests has reached `WORK_US_MAX`;
            nothing was charged.
    """
    if account.is_working:
        raise busy(account)
    account.work_us += work_us


def busy(account: Account) -> ProtocolError:
    """Return the error for a caller whose unanswered requests have reached a limit (number, bytes, event-loop time)."""
    return ProtocolError(
        pb.OVERLOADED,
        f"the unanswered requests of {account.name!r} have reached a limit of this node (their number, bytes or "
        "processing time); wait for answers, then retry",
        retry_after_ms=BUSY_RETRY_MS,
    )
