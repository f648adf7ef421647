"""Session deadlines of members, and gaps between checks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.groups.member_access import UNRESTRICTED
from tidelog_broker.groups.sessions import GAP_S, MemberKey, Sessions

ADA, BOB = MemberKey("g", "ada"), MemberKey("g", "bob")


def watched(now: float = 0.0) -> Sessions:
    sessions = Sessions()
    sessions.begin(now)
    return sessions


def looks(sessions: Sessions, first: float, last: float) -> dict[MemberKey, float]:
    """Look every tenth of a second; return when each expired."""
    found: dict[MemberKey, float] = {}
    for tenth in range(round(first * 10), round(last * 10) + 1):
        for who in sessions.expired(tenth / 10):
            assert who not in found, "a member expires once"
            found[who] = tenth / 10
    return found


def test_silent_member_expires_once_at_its_deadline() -> None:
    sessions = watched()
    sessions.heard(ADA, until=2.0)
    sessions.heard(BOB, until=3.0)
    assert looks(sessions, 0, 5) == {ADA: 2.0, BOB: 3.0}
    assert len(sessions) == 0


def test_heartbeat_extends_the_session() -> None:
    sessions = watched()
    sessions.heard(ADA, until=2.0)
    assert looks(sessions, 0, 1.5) == {}
    sessions.heard(ADA, until=3.5)
    assert looks(sessions, 1.6, 5) == {ADA: 3.5}


def test_removed_member_does_not_expire() -> None:
    sessions = watched()
    sessions.heard(ADA, until=1.0)
    sessions.forget([ADA, BOB])
    assert ADA not in sessions
    assert looks(sessions, 0, 2) == {}


def test_gap_between_checks_extends_deadlines() -> None:
    sessions = watched()
    sessions.heard(ADA, until=2.0)
    assert looks(sessions, 0, 1) == {}
    assert sessions.expired(9.0) == [], "no heartbeat could be received between 1 and 9"
    assert looks(sessions, 9.1, 12) == {ADA: 10.0}


def test_stall_before_the_first_check_is_a_gap() -> None:
    sessions = watched(now=5.0)
    sessions.heard(ADA, until=5.5)
    assert sessions.expired(20.0) == []
    assert looks(sessions, 20, 30) == {ADA: 20.5}


def test_shortest_gap_is_a_gap_and_anything_shorter_is_not() -> None:
    sessions = watched()
    sessions.heard(ADA, until=GAP_S)
    assert sessions.expired(GAP_S) == [], "no look came in between"
    sessions.heard(BOB, until=GAP_S + 0.5)
    assert sessions.expired(1.9 * GAP_S) == [BOB]


def test_forgotten_member_has_no_caller() -> None:
    sessions = watched()
    sessions.heard(ADA, until=1.0)
    sessions.reads_for(ADA, UNRESTRICTED)
    assert sessions.reader(ADA) is UNRESTRICTED
    sessions.forget([ADA])
    assert sessions.reader(ADA) is None


def test_time_without_members_is_not_a_gap() -> None:
    """Without members no timer runs: a member that joins an hour later gets exactly its session timeout."""
    sessions = watched()
    sessions.heard(ADA, until=1.0)
    assert looks(sessions, 0, 1.5) == {ADA: 1.0}
    sessions.begin(3600.0)
    sessions.heard(BOB, until=3602.0)
    assert looks(sessions, 3600, 3605) == {BOB: 3602.0}


@given(st.lists(st.tuples(st.sampled_from([ADA, BOB]), st.floats(0, 3), st.floats(0, 0.9)), max_size=300))
def test_sessions_expire_neither_early_nor_late(steps: list[tuple[MemberKey, float, float]]) -> None:
    sessions, now, until = watched(), 0.0, dict[MemberKey, float]()
    for who, session_s, wait_s in steps:
        until[who] = now + session_s
        sessions.heard(who, until=until[who])
        now += min(wait_s, GAP_S * 0.9)
        expired = set(sessions.expired(now))
        assert expired == {each for each, deadline in until.items() if deadline <= now}
        until = {each: deadline for each, deadline in until.items() if each not in expired}
        assert len(sessions) == len(until)
