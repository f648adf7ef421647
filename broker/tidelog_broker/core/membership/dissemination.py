"""News on its way through the cluster: whose record changed, and how often this node has passed that on.

Every change rides on datagrams that are sent anyway, `factor * ceil(log2(n + 1))` times a node, which reaches
everyone with high probability (SWIM, section 4.1); what still misses somebody is repaired by comparing digests.
The least told goes first. Only node ids are kept: what is sent is the record as it is known by then, so one entry a
member is the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2


class Dissemination:
    """The news that this node still has to tell.

    Args:
        factor: multiplies the logarithm of the cluster's size, at least 1.
    """

    def __init__(self, factor: int) -> None:
        assert factor >= 1
        self._factor = factor
        self._told: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._told

    def add(self, node_id: str) -> None:
        """Begin to tell of a member, from the start if it was being told of already."""
        self._told[node_id] = 0

    def drop(self, node_id: str) -> None:
        """Stop telling of a member that the table has forgotten."""
        self._told.pop(node_id, None)

    def take(self, live: int, fits: Callable[[str], bool]) -> None:
        """Offer the news for one datagram, the least told first.

        Args:
            live: live members, which say how often everything is told.
            fits: takes a node id into the datagram; False if it does not fit or is in it already.
        """
        limit = self._factor * ceil(log2(live + 1))
        for node_id in sorted(self._told, key=self._told.__getitem__):
            if fits(node_id):
                self._told[node_id] += 1
                if self._told[node_id] >= limit:
                    del self._told[node_id]
