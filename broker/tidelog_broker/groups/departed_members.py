"""Members that have left or were replaced, to refuse their joins that arrive late or repeated.

A join waits while the coordinator is being found or its partition opened, so it may arrive after the member's leave. It
would then create a member without a client, whose partitions are not read until its session times out. A client that
returns uses a new member id.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.groups.sessions import MemberKey

REMEMBERED_MAX: Final = 1_024
"""Limit of remembered members; a late join of a forgotten member creates one until its session times out."""


class DepartedMembers:
    """The members that have left or were replaced, for one coordinator while it coordinates."""

    def __init__(self) -> None:
        self._gone: dict[MemberKey, None] = {}

    def __contains__(self, who: object) -> bool:
        """Return whether a member has left or was replaced."""
        return who in self._gone

    def note(self, who: MemberKey) -> None:
        """Record a member that leaves or is replaced, also one whose join has not arrived."""
        self._gone.pop(who, None)
        self._gone[who] = None
        if len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]
