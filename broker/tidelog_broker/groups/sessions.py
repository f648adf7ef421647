"""Until when each member of a group may be silent, and for whom it reads.

No clock of its own; times are seconds of any steady clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from tidelog_broker.core.groups.member_access import MemberAccess

GAP_S: Final = 1.0
"""Who looks this late has not run in between, and nobody could be heard."""


class Who(NamedTuple):
    """A member of a group."""

    group: str
    member_id: str


class Sessions:
    """Deadlines by member. Ask `expired` again and again: a gap between two questions is nobody's silence."""

    def __init__(self) -> None:
        self._deadlines: dict[Who, float] = {}
        self._readers: dict[Who, MemberAccess] = {}
        self._order: list[tuple[float, Who]] = []
        """A heap; an entry counts where it says what `_deadlines` says."""
        self._looked_at: float | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, who: Who) -> bool:
        return who in self._deadlines

    def begin(self, now: float) -> None:
        """Note that somebody looks again and again from now on: that nobody did before was no gap."""
        self._looked_at = now

    def heard(self, who: Who, *, until: float) -> None:
        """Note that a member lives; it may be silent until then."""
        self._deadlines[who] = until
        heappush(self._order, (until, who))
        if len(self._order) > 2 * len(self._deadlines) + 64:
            self._order = sorted((deadline, each) for each, deadline in self._deadlines.items())

    def reads_for(self, who: Who, reader: MemberAccess) -> None:
        """Note whose member it is."""
        self._readers[who] = reader

    def reader(self, who: Who) -> MemberAccess | None:
        """Return whose member it is; None where it has not said anything yet."""
        return self._readers.get(who)

    def forget(self, members: Iterable[Who]) -> None:
        """Expect nothing of members that are gone."""
        for who in members:
            self._deadlines.pop(who, None)
            self._readers.pop(who, None)

    def expired(self, now: float) -> list[Who]:
        """Return, once, who was silent for too long."""
        since = now if self._looked_at is None else self._looked_at
        self._looked_at = now
        if now - since >= GAP_S:
            late = now - since
            self._deadlines = {who: deadline + late for who, deadline in self._deadlines.items()}
            self._order = sorted((deadline, who) for who, deadline in self._deadlines.items())
        found: list[Who] = []
        while self._order and self._order[0][0] <= now:
            deadline, who = heappop(self._order)
            if self._deadlines.get(who) == deadline:
                del self._deadlines[who]
                self._readers.pop(who, None)
                found.append(who)
        return found
