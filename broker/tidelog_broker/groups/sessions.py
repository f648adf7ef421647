"""Session deadlines of group members, and the access of each member's principal.

Times are arguments, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from tidelog_broker.core.groups.member_access import MemberAccess

GAP_S: Final = 1.0
"""Gap between two checks from which on the process counts as paused, so that it may have missed heartbeats."""


class MemberKey(NamedTuple):
    """Identifies a member among those of all groups of a coordinator."""

    group: str
    member_id: str


class Sessions:
    """Deadlines by member. `expired` has to be called regularly; a long gap between two calls extends all deadlines."""

    def __init__(self) -> None:
        self._deadlines: dict[MemberKey, float] = {}
        self._readers: dict[MemberKey, MemberAccess] = {}
        self._order: list[tuple[float, MemberKey]] = []
        """A heap; an entry is valid if it matches `_deadlines`."""
        self._looked_at: float | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, who: MemberKey) -> bool:
        return who in self._deadlines

    def begin(self, now: float) -> None:
        """Start regular checks; the time before them does not count as a gap."""
        self._looked_at = now

    def heard(self, who: MemberKey, *, until: float) -> None:
        """Record a member's heartbeat, which extends its session to `until`."""
        self._deadlines[who] = until
        heappush(self._order, (until, who))
        if len(self._order) > 2 * len(self._deadlines) + 64:
            self._order = sorted((deadline, each) for each, deadline in self._deadlines.items())

    def reads_for(self, who: MemberKey, reader: MemberAccess) -> None:
        """Set the access of a member's principal."""
        self._readers[who] = reader

    def reader(self, who: MemberKey) -> MemberAccess | None:
        """Return the access of a member's principal; None before the member's first heartbeat."""
        return self._readers.get(who)

    def forget(self, members: Iterable[MemberKey]) -> None:
        """Remove members."""
        for who in members:
            self._deadlines.pop(who, None)
            self._readers.pop(who, None)

    def expired(self, now: float) -> list[MemberKey]:
        """Return the members whose sessions have timed out, and forget their sessions."""
        since = now if self._looked_at is None else self._looked_at
        self._looked_at = now
        if now - since >= GAP_S:
            late = now - since
            self._deadlines = {who: deadline + late for who, deadline in self._deadlines.items()}
            self._order = sorted((deadline, who) for who, deadline in self._deadlines.items())
        found: list[MemberKey] = []
        while self._order and self._order[0][0] <= now:
            deadline, who = heappop(self._order)
            if self._deadlines.get(who) == deadline:
                del self._deadlines[who]
                self._readers.pop(who, None)
                found.append(who)
        return found
