"""Effects of membership records: events, updates, suspicions and refutations, with a simulated clock."""

from __future__ import annotations

from dataclasses import replace

from tests.broker.core.swim_world import incarnation, member

from tidelog_broker.core.membership.member_states import Change, IdentityConflict, MembershipChange, MemberStates
from tidelog_broker.core.membership.members import MemberState
from tidelog_broker.core.membership.probe_state import Slowness
from tidelog_broker.core.membership.swim_settings import SwimSettings

ALIVE, SUSPECT, DEAD, LEFT = MemberState


def roster() -> MemberStates:
    return MemberStates(member(0), SwimSettings(), Slowness(4))


def changes(roster: MemberStates) -> list[Change | None]:
    seen = [event.change if isinstance(event, MembershipChange) else None for event in roster.events]
    roster.events.clear()
    return seen


def deadline_ms(roster: MemberStates) -> int | None:
    return roster.next_deadline_ms


def states(roster: MemberStates) -> dict[str, MemberState]:
    return {node_id: record.state for node_id, record in roster.members.items()}


def test_membership_changes_emit_events() -> None:
    one = roster()
    for record, expected in (
        (member(1), [Change.ALIVE]),
        (member(1), []),
        (member(1, refutation=1), []),
        (member(1, refutation=1, state=SUSPECT), [Change.SUSPECT]),
        (member(1, refutation=2), [Change.ALIVE]),
        (member(1, refutation=2, state=DEAD), [Change.DEAD]),
        (member(1, boot=2), [Change.RESTARTED]),
        (member(1, boot=3, state=SUSPECT), [Change.RESTARTED, Change.SUSPECT]),
        (member(1, boot=4, state=DEAD), [Change.DEAD]),
        (member(1, boot=5, state=LEFT), [Change.LEFT]),
        (member(1, boot=4), []),
        (member(2, state=SUSPECT), [Change.ALIVE, Change.SUSPECT]),
        (member(3, state=DEAD), [Change.DEAD]),
    ):
        one.hear(record, 0)
        assert changes(one) == expected, record


def test_suspicion_ends_in_death_unless_refuted() -> None:
    one = roster()
    one.hear(member(1), 0)
    one.hear(member(2), 0)
    assert deadline_ms(one) is None
    assert one.suspect("n1", 100)
    assert not one.suspect("n1", 350)
    assert one.suspect("n2", 200)
    assert deadline_ms(one) == 900
    one.hear(member(2, refutation=1), 300)
    one.declare_dead(899)
    assert states(one) == {"n0": ALIVE, "n1": SUSPECT, "n2": ALIVE}
    one.declare_dead(900)
    assert states(one) == {"n0": ALIVE, "n1": DEAD, "n2": ALIVE}
    assert deadline_ms(one) is None
    assert changes(one) == [Change.ALIVE] * 2 + [Change.SUSPECT] * 2 + [Change.ALIVE, Change.DEAD]


def test_refused_connection_shortens_the_timeout_of_new_and_old_suspicions() -> None:
    one = roster()
    one.hear(member(1), 0)
    one.hear(member(2), 0)
    assert one.suspect("n1", 0, refused=True)
    assert deadline_ms(one) == 100
    assert one.suspect("n2", 0)
    one.declare_dead(100)
    assert states(one) == {"n0": ALIVE, "n1": DEAD, "n2": SUSPECT}
    assert not one.suspect("n2", 300, refused=True)
    assert deadline_ms(one) == 400
    assert not one.suspect("n2", 350, refused=True)
    assert not one.suspect("n1", 350, refused=True)
    assert deadline_ms(one) == 400


def test_suspicions_restart_after_a_pause_and_scale_with_slowness_and_size() -> None:
    one = roster()
    one.hear(member(1), 0)
    one.suspect("n1", 0)
    one.rearm(5_000)
    assert deadline_ms(one) == 5_800
    for index in range(2, 100):
        one.hear(member(index), 0)
    one.rearm(0)
    assert deadline_ms(one) == 1_600
    one._slowness.worse()
    one.rearm(0)
    assert deadline_ms(one) == 3_200


def test_bad_record_about_this_node_is_refuted() -> None:
    one = roster()
    one.hear(member(0, state=SUSPECT), 0)
    assert one.me.refutation == 1
    one.hear(member(0, state=SUSPECT), 0)
    assert one.me.refutation == 1, "that was answered already"
    one.hear(member(0, refutation=1, state=DEAD), 0)
    assert one.me == member(0, refutation=2)
    assert one.events == []
    assert one._slowness.value == 2


def test_node_that_left_refutes_nothing() -> None:
    one = roster()
    one.leave()
    one.leave()
    assert one.me == member(0, refutation=1, state=LEFT)
    one.hear(member(0, state=DEAD), 0)
    assert one.me.state is LEFT


def test_earlier_process_of_this_node_does_not_conflict() -> None:
    one = roster()
    one.hear(replace(member(0), incarnation=incarnation(0, 99), state=DEAD), 0)
    assert not one.halted
    assert one.me == member(0)


def test_copy_of_the_data_directory_is_a_conflict_with_any_nonce() -> None:
    for nonce in (6, 8):
        one = roster()
        one.observe_own_id(incarnation(1, nonce))
        assert one.events == [IdentityConflict("n0", incarnation(1, 7), incarnation(1, nonce))]


def test_other_process_with_the_same_id_is_reported_once() -> None:
    one = roster()
    for other in (member(0, boot=2), member(0, boot=2), member(0, incarnation=incarnation(1) + 1)):
        one.hear(other, 0)
    assert one.halted
    assert one.events == [IdentityConflict("n0", incarnation(1), incarnation(2))]


def test_unknown_own_refutation_shows_another_process() -> None:
    one = roster()
    one.hear(member(0, refutation=1), 0)
    assert one.halted


def test_evicted_members_are_no_longer_disseminated() -> None:
    forgotten: list[str] = []
    one = MemberStates(member(0), SwimSettings(members_max=2), Slowness(1), forgotten.append)
    one.hear(member(1, state=DEAD), 0)
    assert "n1" in one.news
    one.hear(member(2), 0)
    assert "n1" not in one.news
    assert forgotten == ["n1"]
