from __future__ import annotations

from tidelog_broker.groups.coordinator import REMEMBERED_MAX, DepartedMembers
from tidelog_broker.groups.sessions import MemberKey


def test_recently_departed_members_are_remembered() -> None:
    departed = DepartedMembers()
    first, second = MemberKey("g", "first"), MemberKey("g", "second")
    departed.note(first)
    departed.note(second)
    departed.note(first)
    for number in range(REMEMBERED_MAX - 1):
        departed.note(MemberKey("other", str(number)))
    assert first in departed
    assert second not in departed
    assert MemberKey("h", "first") not in departed
