"""Rate limit of failed authentications by client address: a token bucket that refills one token per `every_s` seconds.

Only failures count. An address over its limit is refused without asking a node, because verifying a password costs the
node CPU time. An IPv6 /64 counts as one address, since one machine usually has all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address

ADDRESSES_MAX: Final = 10_000
"""Maximum number of remembered addresses; the address whose last failure is the oldest is dropped first."""


class LoginRateLimit:
    """A token bucket of failed authentications for each address.

    Args:
        most: failures in a burst; 0: unlimited.
        clock: monotonic, in seconds.
        every_s: seconds until one failure is forgiven. With N workers it is N, so that together they forgive one per
            second.
    """

    def __init__(self, most: int, clock: Callable[[], float], *, every_s: float = 1.0) -> None:
        self._most = most
        self._every_s = every_s
        self._clock = clock
        self._paid_at: OrderedDict[str, float] = OrderedDict()
        """Time at which all failures of an address are forgiven."""

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before the next attempt; 0 when it may try now."""
        if not self._most:
            return 0.0
        owed_s = self._paid_at.get(counted_address(address), 0.0) - self._clock()
        return max(0.0, owed_s - (self._most - 1) * self._every_s)

    def failed(self, address: str) -> None:
        """Count a failed authentication."""
        if not self._most:
            return
        network = counted_address(address)
        self._paid_at[network] = max(self._paid_at.pop(network, 0.0), self._clock()) + self._every_s
        if len(self._paid_at) > ADDRESSES_MAX:
            self._paid_at.popitem(last=False)
