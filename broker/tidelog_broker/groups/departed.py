"""Members that have left: a join of one of them, or a repetition of it, is under way still where it was overtaken.

A join waits where the coordinator is being looked for, or its partition opened, and so may be later than what was sent
behind it. Taken then, it would make a member that nobody speaks for, whose partitions nobody reads for a session. Who
comes back does so by another id.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.groups.sessions import Who

REMEMBERED_MAX: Final = 1_024
"""Past this the longest gone are forgotten: then a session ends what they join."""


class Departed:
    """Remembers, for one coordinator and as long as it coordinates."""

    def __init__(self) -> None:
        self._gone: dict[Who, None] = {}

    def __contains__(self, who: object) -> bool:
        """Whether a member has left."""
        return who in self._gone

    def note(self, who: Who) -> None:
        """Somebody leaves, a member or one that is to become one."""
        self._gone.pop(who, None)
        self._gone[who] = None
        if len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]
