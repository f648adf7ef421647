"""Which nodes live, as gossip has it, and cannot be spoken with: their connections are gone, in either direction.

Gossip goes by UDP and through third nodes, replication by TCP and directly. A filter that lets the one through and not
the other leaves an owner that everybody believes in and nobody hears. So a node that has lacked a connection for a
while, to it or from it, is not counted on, whatever gossip says. It is a hint like all that is said of who is alive:
where only two nodes cannot reach each other, the third refuses its pre-vote.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

CUT_MS: Final = 5000
"""A link that breaks is made again within a second or two, also on a busy machine."""


class Reach:
    """Told again and again which connections stand; says who is cut off. Times are milliseconds of any clock."""

    def __init__(self) -> None:
        self._missing_since_ms: dict[str, int] = {}

    def cut_off(
        self, living: Collection[str], *, outgoing: Collection[str], incoming: Collection[str], now_ms: int
    ) -> frozenset[str]:
        """Return who of the living has lacked a connection, to it or from it, for `CUT_MS` or longer."""
        missing = set(living) - (set(outgoing) & set(incoming))
        self._missing_since_ms = {node: self._missing_since_ms.get(node, now_ms) for node in missing}
        return frozenset(node for node, since_ms in self._missing_since_ms.items() if now_ms - since_ms >= CUT_MS)
