"""The membership state machine without I/O: assignment changes, and session expiry."""

from __future__ import annotations

from tidelog.groups.membership import NO_CHANGE, Membership, by_topic
from tidelog_proto import broker_pb2 as pb

TOPIC = b"t" * 16


def joined(*partitions: int, revision: int = 1, at: float = 0.0) -> Membership:
    life = Membership("g", "m" * 16, pb.GroupWish(topics=["t"]), 10.0)
    change = life.answered(reply(*partitions, revision=revision), sent_at=at, now=at)
    assert life.begin(change.assigned, now=at) == change.assigned
    return life


def reply(*partitions: int, revision: int, generation: int = 1) -> pb.GroupHeartbeatReply:
    topics = [pb.TopicPartitions(topic_id=TOPIC, topic="t", partitions=partitions)] if partitions else []
    return pb.GroupHeartbeatReply(revision=revision, generation=generation, assigned=topics)


def places(*partitions: int) -> set[tuple[bytes, int]]:
    return {(TOPIC, partition) for partition in partitions}


def test_join_is_followed_by_heartbeats_with_held_partitions() -> None:
    life = Membership("g", "m" * 16, pb.GroupWish(topics=["t"]), 10.0)
    assert life.heartbeat(wait_ms=5).HasField("join")
    assert not life.is_over(99.0), "the coordinator has not accepted it yet"
    life = joined(0, 1, revision=7)
    said = life.heartbeat(wait_ms=5)
    assert (said.HasField("join"), said.seen_revision, list(said.held[0].partitions)) == (False, 7, [0, 1])
    assert life.leaving().leave


def test_heartbeat_reports_loads_of_held_partitions() -> None:
    life = joined(0, 1)
    wants = [life.wants_loads]
    for at, wanted in enumerate([True, False], 1):
        answer = pb.GroupHeartbeatReply(revision=1, unchanged=True, wants_loads=wanted)
        life.answered(answer, sent_at=float(at), now=float(at))
        wants.append(life.wants_loads)
    assert wants == [False, True, False]
    said = life.heartbeat(wait_ms=5, loads={(TOPIC, 1): 12.5, (TOPIC, 7): 99.0})
    assert list(said.loads) == [pb.PartitionLoad(topic_id=TOPIC, partition=1, bytes_per_s=12.5)]
    assert not life.heartbeat(wait_ms=5).loads


def test_revoked_partition_is_reported_as_held_until_released() -> None:
    life = joined(0, 1)
    change = life.answered(reply(1, revision=2, generation=2), sent_at=1.0, now=1.0)
    assert not change.assigned
    assert change.revoked == places(0)
    assert list(life.heartbeat(wait_ms=0).held[0].partitions) == [0, 1]
    life.released(places(0))
    assert list(life.heartbeat(wait_ms=0).held[0].partitions) == [1]
    assert life.generation == 2


def test_outdated_answer_changes_nothing() -> None:
    life = joined(0, revision=5)
    assert life.answered(reply(0, 1, revision=4), sent_at=1.0, now=1.0) == NO_CHANGE
    assert life.begin(places(1), now=1.0) == frozenset(), "only partitions of the newest answer may begin"


def test_session_counts_from_sending_the_heartbeat() -> None:
    life = joined(0)
    life.answered(pb.GroupHeartbeatReply(revision=1, unchanged=True), sent_at=3.0, now=9.0)
    assert not life.is_over(12.9)
    assert life.is_over(13.0)
    assert life.ends_at == 13.0
    life.answered(pb.GroupHeartbeatReply(revision=1, unchanged=True), sent_at=2.0, now=9.0)
    assert life.ends_at == 13.0, "an earlier heartbeat does not extend the session"


def test_answer_after_session_expiry_is_ignored() -> None:
    life = Membership("g", "m" * 16, pb.GroupWish(), 10.0)
    assert life.answered(reply(0, revision=1), sent_at=0.0, now=10.0) == NO_CHANGE
    assert not life.is_joined
    life = joined(0)
    assert life.begin(places(0), now=10.0) == frozenset()


def test_wire_form_groups_partitions_by_topic() -> None:
    other = b"a" * 16
    told = by_topic([(TOPIC, 2), (other, 1), (TOPIC, 0)])
    assert [(each.topic_id, list(each.partitions)) for each in told] == [(other, [1]), (TOPIC, [0, 2])]
