"""Conversion of group members' partitions between sets and the lists in messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def partitions_of(keys: Iterable[PartitionKey]) -> list[pb.TopicPartitions]:
    """Return partitions as a message, sorted by topic and number."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        pb.TopicPartitions(topic_id=topic_id, partitions=sorted(by_topic[topic_id])) for topic_id in sorted(by_topic)
    ]


def keys_of(topics: Iterable[pb.TopicPartitions]) -> set[PartitionKey]:
    """Return the partitions of a message."""
    return {(topic.topic_id, partition) for topic in topics for partition in topic.partitions}


def same_partitions(one: Sequence[pb.TopicPartitions], other: Sequence[pb.TopicPartitions]) -> bool:
    """Return whether two messages of `partitions_of` have the same partitions, without an object for each of them."""
    return len(one) == len(other) and all(
        left.topic_id == right.topic_id and left.partitions == right.partitions
        for left, right in zip(one, other, strict=True)
    )


def grants_of(held: Mapping[PartitionKey, int]) -> list[pb.TopicPartitions]:
    """Return held partitions and the generations of their grants as a message."""
    topics = partitions_of(held)
    for topic in topics:
        topic.generations.extend(held[topic.topic_id, partition] for partition in topic.partitions)
    return topics


def held_of(member: pb.GroupMember) -> dict[PartitionKey, int]:
    """Return the partitions that a member holds, with the generations of their grants."""
    return {
        (topic.topic_id, partition): generation
        for topic in member.held
        for partition, generation in zip(topic.partitions, topic.generations, strict=True)
    }


def not_held(group: str, generation: int, key: PartitionKey) -> ProtocolError:
    """Return the error for a position that a member may not commit, see `ConsumerGroup.may_commit`."""
    return ProtocolError(
        pb.MEMBER_FENCED,
        f"partition {key[1]} of topic {key[0].hex()} is not held by this member of group {group!r} in "
        f"generation {generation}: the member has no grant of it, or only one of a later generation; commit only "
        "partitions of the current assignment",
    )
