"""The value of a takeover: an accepted one if there is any, otherwise the longest log of a seal quorum."""

from __future__ import annotations

import pytest

from tidelog_broker.core.replication.paxos import Promise, choose_value, seal_quorum, without_undecided
from tidelog_broker.core.replication.ports import Plan
from tidelog_proto import broker_pb2 as pb


def choose(promises: list[Promise], *, placement: tuple[str, ...] = ("a", "b", "c"), quorum: int = 2) -> bytes:
    return choose_value(
        promises,
        descriptor=pb.EpochDescriptor(epoch=3, placement=placement, ack_quorum=quorum, start_offset=10),
        previous_hash=b"h" * 32,
        plan=Plan("b", ("b", "c"), 2),
        owner_incarnation=8,
    )


def test_end_is_the_greatest_durable_offset() -> None:
    value = pb.EpochDecision.FromString(choose([Promise("a", 20, 1), Promise("b", 25, 2)]))
    assert (value.end_offset, value.end_digest) == (25, 2)
    assert (value.next.epoch, value.next.start_offset, value.next.owner) == (4, 25, "b")
    assert value.previous_hash == b"h" * 32


def test_accepted_value_of_the_highest_ballot_is_adopted_unchanged() -> None:
    low, high = pb.Ballot(round=1, node_id="z"), pb.Ballot(round=2, node_id="a")
    assert choose([Promise("a", 99, 1, low, b"old"), Promise("b", 12, 2, high, b"new")]) == b"new"


def test_end_from_short_logs_is_marked_and_an_accepted_one_is_unchanged() -> None:
    def of_short_logs(promises: list[Promise]) -> bytes:
        return choose_value(
            promises,
            descriptor=pb.EpochDescriptor(epoch=3, placement=("a", "b"), ack_quorum=1, start_offset=10),
            previous_hash=b"",
            plan=Plan("b", ("b",), 1),
            owner_incarnation=8,
            short_logs=True,
        )

    short = [Promise("a", 20, 1), Promise("b", 25, 2)]
    assert pb.EpochDecision.FromString(of_short_logs(short)).short_logs
    accepted = Promise("b", 25, 2, pb.Ballot(round=1, node_id="a"), b"as it was")
    assert of_short_logs([short[0], accepted]) == b"as it was"


def test_fewer_promises_than_a_seal_quorum_decide_nothing() -> None:
    with pytest.raises(AssertionError):
        choose([Promise("a", 20, 1)])
    with pytest.raises(AssertionError):
        choose([Promise("a", 20, 1), Promise("a", 20, 1)])


@pytest.mark.parametrize(("replicas", "acks", "seal"), [(1, 1, 1), (3, 2, 2), (5, 3, 3), (4, 3, 2), (3, 3, 1)])
def test_seal_quorums_intersect_ack_quorums(replicas: int, acks: int, seal: int) -> None:
    assert seal_quorum(replicas, acks) == seal
    assert seal + acks > replicas


def recovered(promises: list[Promise]) -> pb.EpochDecision:
    value = choose_value(
        promises,
        descriptor=pb.EpochDescriptor(epoch=3, placement=("a", "b", "c"), ack_quorum=2, start_offset=10),
        previous_hash=b"h" * 32,
        plan=Plan("b", ("b",), 1),
        owner_incarnation=8,
        unsafe=True,
    )
    return pb.EpochDecision.FromString(value)


def test_unsafe_choice_keeps_the_accepted_end_and_is_marked() -> None:
    accepted = pb.EpochDecision.FromString(choose([Promise("a", 20, 1), Promise("c", 25, 2)]))
    value = recovered([Promise("b", 30, 3, pb.Ballot(round=1, node_id="c"), accepted.SerializeToString())])
    assert (value.end_offset, value.end_digest, value.unsafe) == (25, 2, True)
    assert (value.next.owner, list(value.next.placement), value.next.owner_incarnation) == ("b", ["b"], 8)
    assert value.next.start_offset == 25


def test_value_marked_by_an_earlier_recovery_is_kept() -> None:
    """A quorum keeps it, too, because it may have been decided with a single accept."""
    earlier = recovered([Promise("b", 20, 1)])
    raw = earlier.SerializeToString()
    assert recovered([Promise("b", 30, 3, pb.Ballot(round=1, node_id="c"), raw)]) == earlier
    assert choose([Promise("a", 30, 3), Promise("b", 30, 3, pb.Ballot(round=1, node_id="c"), raw)]) == raw


def after_losses(promises: list[Promise], *, short_logs: bool = True, lost_until: int = 0) -> pb.EpochDecision:
    value = choose_value(
        promises,
        descriptor=pb.EpochDescriptor(epoch=3, placement=("a", "b", "c"), ack_quorum=2, start_offset=10),
        previous_hash=b"h" * 32,
        plan=Plan("b", ("b", "c"), 2),
        owner_incarnation=8,
        short_logs=short_logs,
        lost_until=lost_until,
    )
    return pb.EpochDecision.FromString(value)


def test_records_are_lost_up_to_the_highest_ceiling_of_a_lost_copy() -> None:
    lost = [Promise("a", 10, 0, ceiling=90), Promise("b", 10, 0, ceiling=70), Promise("c", 25, 2)]
    value = after_losses(lost)
    assert (value.end_offset, value.lost_until, value.next.start_offset) == (25, 90, 25)
    assert after_losses([Promise("a", 10, 0, ceiling=25), *lost[2:]]).lost_until == 0, "the longest log has them"


def test_enough_whole_logs_lose_nothing_whatever_ceilings_the_others_report() -> None:
    value = after_losses([Promise("a", 10, 0, ceiling=90), Promise("b", 20, 1), Promise("c", 25, 2)], short_logs=False)
    assert (value.end_offset, value.lost_until) == (25, 0)


def test_lost_records_of_the_previous_decision_stay_lost_where_they_are_not_filled() -> None:
    whole = [Promise("b", 20, 1), Promise("c", 25, 2)]
    assert after_losses(whole, short_logs=False, lost_until=60).lost_until == 60
    assert after_losses(whole, short_logs=False, lost_until=25).lost_until == 0


def test_unsafe_choice_keeps_the_loss_of_an_accepted_value() -> None:
    accepted = after_losses([Promise("a", 10, 0, ceiling=90), Promise("b", 10, 0, ceiling=70), Promise("c", 25, 2)])
    value = recovered([Promise("b", 30, 3, pb.Ballot(round=1, node_id="c"), accepted.SerializeToString())])
    assert (value.end_offset, value.lost_until, value.unsafe) == (25, 90, True)


def test_value_that_fewer_than_an_ack_quorum_of_all_replicas_have_is_not_decided() -> None:
    first, second = pb.Ballot(round=1, node_id="a"), pb.Ballot(round=2, node_id="b")
    twice = [Promise("a", 10, 0, first, b"v"), Promise("b", 10, 0, second, b"v"), Promise("c", 10, 0)]
    assert without_undecided(twice, 2) == twice, "later proposals of a decided value are that value"
    once = [twice[0], Promise("b", 10, 0, second, b"w"), twice[2]]
    assert [promise.accepted_value for promise in without_undecided(once, 2)] == [b"", b"", b""]
    assert all(promise.accepted is None for promise in without_undecided(once, 2))
