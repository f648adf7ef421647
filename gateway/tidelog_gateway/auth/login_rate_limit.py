"""How often an address may be wrong about who it is: so many times at once, then once a second, or less often.

Only what was wrong counts. Who has more than his share is not asked about for a while: the node that would look at his
next try hashes slowly, and has others to look at. Of IPv6 a whole /64 counts as one address, as one machine has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address

ADDRESSES_MAX: Final = 10_000
"""The addresses that are remembered; the one that was wrong longest ago is forgotten."""


class Tries:
    """See the module.

    Args:
        most: wrong tries at once; 0: as many as they like.
        clock: seconds that only grow.
        every_s: seconds in which one wrong try is forgiven: N in each of N workers, so that all of them forgive one a
            second.
    """

    def __init__(self, most: int, clock: Callable[[], float], *, every_s: float = 1.0) -> None:
        self._most = most
        self._every_s = every_s
        self._clock = clock
        self._paid_at: OrderedDict[str, float] = OrderedDict()
        """Of each address, when all that was wrong will be forgiven."""

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before it may try again; 0 when it may."""
        if not self._most:
            return 0.0
        owed_s = self._paid_at.get(counted_address(address), 0.0) - self._clock()
        return max(0.0, owed_s - (self._most - 1) * self._every_s)

    def failed(self, address: str) -> None:
        """Count a wrong try."""
        if not self._most:
            return
        network = counted_address(address)
        self._paid_at[network] = max(self._paid_at.pop(network, 0.0), self._clock()) + self._every_s
        if len(self._paid_at) > ADDRESSES_MAX:
            self._paid_at.popitem(last=False)
