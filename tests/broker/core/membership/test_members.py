from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.broker.core.swim_world import member

from tidelog_broker.core.membership.members import Member, Members, MemberState

RECORDS = st.builds(
    lambda node, boot, refutation, state: member(node, boot=boot, refutation=refutation, state=state),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from(MemberState),
)


@given(st.lists(RECORDS, max_size=30), st.randoms())
def test_tables_that_merged_the_same_records_are_equal(records: list[Member], chance: object) -> None:
    one, other = Members(16), Members(16)
    for record in records:
        one.merge(record)
    shuffled = [*records, *records[:5]]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    for record in shuffled:
        other.merge(record)
    assert dict(one) == dict(other)
    assert (one.digest, one.live_count) == (other.digest, other.live_count)
    assert one.live_count == len(one.live()) == sum(map(one.alive, one))


def test_record_order_is_incarnation_refutation_state() -> None:
    table = Members(4)
    plain = member(1, refutation=2)
    assert table.merge(plain)
    assert not table.merge(plain)
    assert not table.merge(replace(plain, refutation=1, state=MemberState.DEAD))
    for later in (
        replace(plain, state=MemberState.SUSPECT),
        replace(plain, state=MemberState.DEAD),
        replace(plain, refutation=3),
        replace(plain, refutation=3, state=MemberState.LEFT),
        member(1, boot=2),
    ):
        assert table.merge(later)
        assert table["n1"] == later


def test_suspected_member_counts_as_alive_and_an_unknown_one_does_not() -> None:
    table = Members(4)
    table.merge(member(1, state=MemberState.SUSPECT))
    assert table.alive("n1")
    table.merge(member(1, state=MemberState.DEAD))
    assert not table.alive("n1")
    assert not table.alive("n2")


def test_digest_covers_live_members() -> None:
    one, other = Members(4), Members(4)
    one.merge(member(1))
    one.merge(member(2))
    one.merge(member(2, state=MemberState.DEAD))
    assert one.digest != 0
    other.merge(member(1))
    assert one.digest == other.digest
    other.merge(member(1, state=MemberState.SUSPECT))
    assert one.digest != other.digest
    other.merge(member(1, state=MemberState.LEFT))
    assert other.digest == 0


def test_members_that_are_gone_are_evicted_and_live_ones_are_not() -> None:
    forgotten: list[str] = []
    table = Members(3, forgotten.append)
    for node in (0, 1, 2):
        table.merge(member(node))
    table.merge(member(1, state=MemberState.DEAD))
    table.merge(member(0, state=MemberState.LEFT))
    assert not table.merge(member(5, state=MemberState.DEAD)), "no room for the gone"
    assert table.merge(member(3))
    assert table.merge(member(4))
    assert forgotten == ["n0", "n1"], "nodes that have left are removed first"
    assert not table.merge(member(5))
    assert table.refused_full == 1
    assert sorted(table) == ["n2", "n3", "n4"]
    table.merge(member(3, state=MemberState.DEAD))
    table.merge(member(2, state=MemberState.DEAD))
    assert table.merge(member(5))
    assert forgotten[2:] == ["n3"], "it has been dead for longer"
