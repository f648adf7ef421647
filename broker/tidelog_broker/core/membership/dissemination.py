"""Dissemination of membership updates: which members changed, and how often this node has sent each update.

Updates are piggybacked on datagrams, `factor * ceil(log2(n + 1))` times by each node, which reaches all members with
high probability (SWIM, section 4.1). Members that missed an update receive it when digests are compared. The update
that was sent least often goes first. Only node ids are stored, because the current record of a member is sent; memory
is therefore bounded by one entry per member.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2


class Dissemination:
    """The updates that this node still has to send.

    Args:
        factor: multiplies the logarithm of the cluster's size, at least 1.
    """

    def __init__(self, factor: int) -> None:
        assert factor >= 1
        self._factor = factor
        self._sent_counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sent_counts)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._sent_counts

    def add(self, node_id: str) -> None:
        """Start sending the update of a member, or restart its count."""
        self._sent_counts[node_id] = 0

    def drop(self, node_id: str) -> None:
        """Stop sending the update of a member that was evicted from the table."""
        self._sent_counts.pop(node_id, None)

    def take(self, live: int, fits: Callable[[str], bool]) -> None:
        """Offer the updates for one datagram, least often sent first.

        Args:
            live: number of live members, which determines how often each update is sent.
            fits: adds a member to the datagram; returns False if it does not fit or is already in it.
        """
        limit = self._factor * ceil(log2(live + 1))
        for node_id in sorted(self._sent_counts, key=self._sent_counts.__getitem__):
            if fits(node_id):
                self._sent_counts[node_id] += 1
                if self._sent_counts[node_id] >= limit:
                    del self._sent_counts[node_id]
