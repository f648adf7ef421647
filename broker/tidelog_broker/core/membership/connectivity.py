"""Detection of nodes that gossip reports alive but that have no replication connection to or from this node.

Gossip uses UDP and relays through other nodes; replication uses direct TCP connections. A firewall that passes only
gossip would leave an owner that all nodes believe alive and none can reach. A node without a connection in either
direction for `UNREACHABLE_MS` is therefore treated as unavailable. Like all liveness information this is a hint: if
only two nodes cannot reach each other, a third refuses the pre-vote.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

UNREACHABLE_MS: Final = 5000
"""Time without a connection after which a node counts as unavailable: a broken connection is re-established within 1 to
2 s, also on a busy machine."""


class ConnectivityMonitor:
    """Tracks for how long connections have been missing. Times are milliseconds of any monotonic clock."""

    def __init__(self) -> None:
        self._missing_since_ms: dict[str, int] = {}

    def unreachable(
        self, living: Collection[str], *, outgoing: Collection[str], incoming: Collection[str], now_ms: int
    ) -> frozenset[str]:
        """Return the living nodes that have lacked a connection in either direction for `UNREACHABLE_MS` or longer."""
        missing = set(living) - (set(outgoing) & set(incoming))
        self._missing_since_ms = {node: self._missing_since_ms.get(node, now_ms) for node in missing}
        return frozenset(
            node for node, since_ms in self._missing_since_ms.items() if now_ms - since_ms >= UNREACHABLE_MS
        )
