"""The fence: promises never regress, one value per ballot, and a ballot reserved for the owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.core.bench import INCARNATION, KEY, ballot, descriptor

from tidelog_broker.core.replication.fence import CEILING_STEP_MAX, CEILING_STEP_MIN, RESERVED_ROUND, Fence
from tidelog_broker.core.replication.paxos import ballot_key
from tidelog_proto import broker_pb2 as pb

OWNERS = ballot(RESERVED_ROUND, "a")


def fence(stored: pb.FenceEntry | None = None) -> Fence:
    return Fence(KEY, descriptor(), stored)


def test_new_fence_has_no_promise_and_no_accept() -> None:
    subject = fence()
    assert (subject.promised, subject.accepted) == (None, None)
    assert not subject.is_promised(pb.Ballot()), "an unset promise is not one of the lowest ballot"
    assert subject.may_accept(ballot(1), b"v")


@pytest.mark.parametrize(
    ("first", "second", "is_given"),
    [
        (ballot(2), ballot(3), True),
        (ballot(2), ballot(2), True),
        (ballot(2), ballot(1), False),
        (ballot(2, "b"), ballot(2, "c"), True),
        (ballot(2, "c"), ballot(2, "b"), False),
        (ballot(2, "b", 7), ballot(2, "b", 8), True),
        (ballot(2, "b", 8), ballot(2, "b", 7), False),
        (ballot(2, "c", 9), ballot(3, "a", 1), True),
    ],
    ids=["higher", "the same", "lower", "node", "lower node", "incarnation", "lower incarnation", "the round is first"],
)
def test_lower_ballot_is_not_promised(first: pb.Ballot, second: pb.Ballot, *, is_given: bool) -> None:
    subject = fence()
    assert subject.promise(first) is not None
    entry = subject.promise(second)
    assert (entry is not None) == is_given
    assert subject.promised == (second if is_given else first)
    assert subject.is_promised(second) == is_given
    assert subject.may_accept(second, b"v") == is_given


def test_journal_entries_are_copies() -> None:
    subject = fence()
    first = subject.promise(ballot(1))
    second = subject.accept(ballot(2), b"value")
    subject.promise(ballot(3))
    assert first is not None
    assert (first.promised, first.accepted_value) == (ballot(1), b"")
    assert second.promised == ballot(2)


def test_accept_raises_the_promise_and_survives_a_higher_one() -> None:
    subject = fence()
    accepted = subject.accept(ballot(3), b"value")
    assert (accepted.promised, accepted.accepted, accepted.accepted_value) == (ballot(3), ballot(3), b"value")
    assert subject.promise(ballot(2)) is None
    promised = subject.promise(ballot(4))
    assert promised is not None
    assert (promised.promised, promised.accepted, promised.accepted_value) == (ballot(4), ballot(3), b"value")


def test_ballot_never_accepts_a_second_value() -> None:
    subject = fence()
    subject.accept(ballot(3), b"value")
    assert subject.may_accept(ballot(3), b"value"), "a repeated request gets the same answer"
    assert not subject.may_accept(ballot(3), b"other")
    with pytest.raises(AssertionError):
        subject.accept(ballot(3), b"other")
    assert subject.may_accept(ballot(4), b"other"), "a higher ballot brings its own"


def test_reserved_ballot_accepts_one_value_of_the_owner() -> None:
    subject = fence()
    assert subject.may_accept(OWNERS, b"value")
    subject.accept(OWNERS, b"value")
    assert subject.may_accept(OWNERS, b"value")
    assert not subject.may_accept(OWNERS, b"other")


@pytest.mark.parametrize(
    "other",
    [ballot(0, "b"), ballot(0, "a", INCARNATION + 1), ballot(0, "a", INCARNATION - 1), ballot(0, "", 0)],
    ids=["another node", "a later start of the owner", "an earlier one", "nobody"],
)
def test_reserved_ballot_of_another_node_is_refused(other: pb.Ballot) -> None:
    assert not fence().may_accept(other, b"value")


@pytest.mark.parametrize("round_", [1, 5])
def test_reserved_ballot_is_accepted_only_without_a_promise(round_: int) -> None:
    subject = fence()
    subject.promise(ballot(round_, "a"))
    assert not subject.may_accept(OWNERS, b"value")


def test_stored_fence_is_restored() -> None:
    before = fence()
    before.accept(ballot(3), b"value")
    entry = before.promise(ballot(5))
    after = fence(entry)
    assert (after.promised, after.accepted) == (ballot(5), ballot(3))
    assert not after.may_accept(ballot(4), b"value")
    again = after.promise(ballot(5))
    assert again is not None
    assert again.accepted_value == b"value"


def test_stored_fence_of_another_epoch_is_rejected() -> None:
    with pytest.raises(AssertionError):
        fence(pb.FenceEntry(epoch=1, promised=ballot(1)))


def test_stored_fence_without_a_descriptor_gets_it_from_the_chain() -> None:
    subject = fence(pb.FenceEntry(topic_id=KEY[0], epoch=0))
    assert subject.opened().descriptor == descriptor()
    assert subject.may_accept(OWNERS, b"value")


def test_entries_contain_partition_and_epoch() -> None:
    subject = Fence((b"t" * 16, 4), descriptor(3, start=9))
    opened, dropped = subject.opened(), subject.dropped()
    assert (opened.topic_id, opened.partition, opened.epoch) == (b"t" * 16, 4, 3)
    assert not opened.HasField("promised")
    assert (dropped.topic_id, dropped.partition, dropped.epoch, dropped.dropped) == (b"t" * 16, 4, 3, True)


BALLOTS = st.builds(ballot, st.integers(0, 3), st.sampled_from("abc"), st.integers(INCARNATION, INCARNATION + 1))


@given(st.lists(st.tuples(st.booleans(), BALLOTS, st.sampled_from([b"v", b"w"]), st.booleans()), max_size=30))
def test_promises_never_regress_and_a_ballot_has_one_value(
    asked: list[tuple[bool, pb.Ballot, bytes, bool]],
) -> None:
    subject, accepted, entry = fence(), dict[object, bytes](), pb.FenceEntry()
    for is_open, one, value, crashes in asked:
        before = ballot_key(subject.entry.promised)
        if is_open:
            if subject.may_accept(one, value):
                entry = subject.accept(one, value)
                assert accepted.setdefault(ballot_key(one), value) == value
        elif one.round > RESERVED_ROUND:
            entry = subject.promise(one) or entry
        if crashes:
            subject = fence(entry)
        assert ballot_key(subject.entry.promised) >= before


def test_ceiling_is_raised_ahead_of_appends_in_growing_steps() -> None:
    subject = Fence(KEY, descriptor(3, start=1000), is_volatile=True)
    assert subject.ceiling == 0
    first = subject.raise_ceiling(1001)
    assert first.ceiling == subject.ceiling == 1001 + CEILING_STEP_MIN
    assert subject.raise_ceiling(1_001_000).ceiling == 1_001_000 + 1_000_000
    assert subject.raise_ceiling(10**9).ceiling == 10**9 + CEILING_STEP_MAX
    assert subject.promise(ballot(1)).ceiling == subject.ceiling  # type: ignore[union-attr]
    restarted = Fence(KEY, descriptor(3, start=1000), first, is_volatile=True)
    assert restarted.ceiling == 1001 + CEILING_STEP_MIN


def test_epoch_that_survives_restarts_has_no_ceiling() -> None:
    subject = fence()
    assert subject.ceiling > 2**63
    assert not subject.opened().ceiling
