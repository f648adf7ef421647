from __future__ import annotations

from tidelog_broker.groups.departed import REMEMBERED_MAX, Departed
from tidelog_broker.groups.sessions import Who


def test_recently_departed_members_are_remembered() -> None:
    departed = Departed()
    first, second = Who("g", "first"), Who("g", "second")
    departed.note(first)
    departed.note(second)
    departed.note(first)
    for number in range(REMEMBERED_MAX - 1):
        departed.note(Who("other", str(number)))
    assert first in departed
    assert second not in departed
    assert Who("h", "first") not in departed
