"""Group descriptions fit an envelope."""

from __future__ import annotations

import pytest

from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.groups.descriptions import Descriptions
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENVELOPE_BYTES_MAX

TOPICS = 20_000


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def groups() -> GroupRecords:
    return GroupRecords()


@pytest.fixture
def descriptions(groups: GroupRecords) -> Descriptions:
    topics = TopicRegistry()
    for number in range(TOPICS):
        config = pb.TopicConfig(partitions=1)
        name = f"{number:06}".rjust(249, "t")
        topics.apply(pb.TopicRecord(name=name, topic_id=id_of(number), config=config, revision=1))
    return Descriptions(groups=groups, positions=GroupOffsets(), topics=topics, node_id="n" * 128)


def largest() -> pb.GroupRecord:
    """Return a group with as much as there may be of everything."""
    members = []
    for number in range(1000):
        topics = [
            pb.TopicPartitions(topic_id=id_of(at), partitions=[0], generations=[1 << 40])
            for at in range(number * 20, number * 20 + 20)
        ]
        wish = pb.GroupWish(topics=["t" * 180], client_id="c" * 60)
        members.append(pb.GroupMember(member_id=f"{number:064}", wish=wish, held=topics, target=topics))
    return pb.GroupRecord(group="g" * 255, revision=1 << 40, generation=1 << 40, members=members)


def test_description_of_the_largest_group_fits_an_envelope(descriptions: Descriptions, groups: GroupRecords) -> None:
    record = largest()
    groups.apply(record)
    reply = descriptions.describe(record.group)
    assert pb.Envelope(group_describe_reply=reply).ByteSize() < ENVELOPE_BYTES_MAX
    assert reply.shortened
    assert [member.member_id for member in reply.members] == [member.member_id for member in record.members]
    assert reply.members[0] == record.members[0]
    assert descriptions.effort(record.group) > 100_000


def test_assignment_of_all_partitions_fits_an_answer(descriptions: Descriptions) -> None:
    told = descriptions.named(frozenset((id_of(number), 0) for number in range(TOPICS)))
    reply = pb.GroupHeartbeatReply(assigned=told)
    assert pb.Envelope(group_heartbeat_reply=reply).ByteSize() < ENVELOPE_BYTES_MAX
    assert len(told) == TOPICS
    assert told[0].topic.startswith("t")
    assert not told[-1].topic


def test_small_group_is_described_completely(descriptions: Descriptions, groups: GroupRecords) -> None:
    held = [pb.TopicPartitions(topic_id=id_of(3), partitions=[0], generations=[1])]
    members = [pb.GroupMember(member_id="m" * 16, wish=pb.GroupWish(topics=["t"]), held=held)]
    groups.apply(pb.GroupRecord(group="g", revision=1, generation=1, members=members))
    reply = descriptions.describe("g")
    assert not reply.shortened
    assert list(reply.members) == members
    assert [topic.topic_id for topic in reply.topics] == [id_of(3)]
    assert (reply.summary.state, reply.summary.assignor) == ("moving", pb.STICKY)
    assert descriptions.names() == {"g"}
    with pytest.raises(ProtocolError) as refused:
        descriptions.describe("none")
    assert refused.value.code == pb.UNKNOWN_GROUP
