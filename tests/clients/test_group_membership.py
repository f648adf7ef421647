"""A member without I/O: what it may begin with, what it names, and when it is over by its own clock."""

from __future__ import annotations

from tidelog.group_membership import NOTHING, Change, Membership, by_topic
from tidelog_proto import broker_pb2 as pb

T, U = b"t" * 16, b"u" * 16


def member(session_s: float = 10.0) -> Membership:
    return Membership("g", "m" * 16, pb.GroupWish(topics=["t"]), session_s)


def reply(revision: int, *partitions: int, generation: int = 1) -> pb.GroupHeartbeatReply:
    assigned = [pb.TopicPartitions(topic_id=T, partitions=partitions, topic="t")] if partitions else []
    return pb.GroupHeartbeatReply(revision=revision, generation=generation, assigned=assigned)


def places(*partitions: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((T, number) for number in partitions)


def test_it_asks_to_be_taken_in_until_it_is() -> None:
    one = member()
    assert one.heartbeat(wait_ms=5).join == one.wish
    assert one.answered(reply(3, 0, 1), sent_at=0, now=1) == Change(places(0, 1), frozenset())
    assert one.begin(places(0, 1, 7), now=1) == places(0, 1), "only what it is to have"
    said = one.heartbeat(wait_ms=5)
    assert not said.HasField("join")
    assert (said.seen_revision, said.wait_ms, list(said.held)) == (3, 5, by_topic(places(0, 1)))
    assert one.names == {T: "t"}


def test_it_names_what_it_has_until_it_has_given_it_up() -> None:
    one = member()
    one.answered(reply(1, 0, 1), sent_at=0, now=0)
    one.begin(places(0, 1), now=0)
    assert one.answered(reply(2, 1, generation=2), sent_at=1, now=1) == Change(frozenset(), places(0))
    assert one.generation == 2
    assert list(one.heartbeat(wait_ms=0).held[0].partitions) == [0, 1]
    one.gave_up(places(0))
    assert list(one.heartbeat(wait_ms=0).held[0].partitions) == [1]
    assert one.begin(places(0), now=1) == frozenset()


def test_an_answer_that_was_overtaken_asks_for_nothing() -> None:
    one = member()
    one.answered(reply(5, 1, generation=3), sent_at=2, now=2)
    assert one.answered(reply(4, 0, generation=2), sent_at=1, now=3) == NOTHING
    assert one.assigned == places(1)
    assert one.generation == 3
    assert one.ends_at == 12


def test_a_session_counts_from_when_the_question_was_sent() -> None:
    one = member(session_s=10)
    one.answered(reply(1, 0), sent_at=0, now=9)
    assert not one.is_over(9.9)
    assert one.is_over(10)
    assert one.begin(places(0), now=10) == frozenset()
    unchanged = pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    assert one.answered(unchanged, sent_at=5, now=6) == NOTHING
    assert not one.is_over(14)
    assert one.assigned == places(0)


def test_an_answer_from_before_a_whole_session_is_none() -> None:
    one = member(session_s=10)
    assert one.answered(reply(1, 0), sent_at=0, now=10) == NOTHING
    assert not one.is_joined
    assert not one.is_over(100), "it has nothing to stop"


def test_its_last_word_names_nothing() -> None:
    one = member()
    one.answered(reply(1, 0), sent_at=0, now=0)
    assert one.leaving() == pb.GroupHeartbeat(group="g", member_id="m" * 16, leave=True)


def test_partitions_travel_by_topic_and_in_order() -> None:
    travelling = by_topic([(U, 1), (T, 2), (U, 0)])
    assert [(one.topic_id, list(one.partitions)) for one in travelling] == [(T, [2]), (U, [0, 1])]
