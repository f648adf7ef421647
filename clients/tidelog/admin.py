"""Topics, offsets and status between the wire's messages and the client's values; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from tidelog.errors import InvalidRequestError, error_of, error_of_local
from tidelog.model import (
    ClusterStatus,
    Committed,
    NextDeletion,
    Node,
    Offset,
    Partition,
    Replica,
    Topic,
    TopicPartition,
)
from tidelog.topic_settings import settings_of
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import OFFSET_MAX
from tidelog_proto.names import check_group_name, check_topic_name

At = Literal["earliest", "latest"] | datetime | int
"""A point in a log: its ends, a time, or that time in µs since 1970."""


class NewestOf(NamedTuple):
    """The newest record of a key, as a point in a log."""

    key: bytes


_ROLE_NAME: Final[Mapping[int, str]] = {pb.INGESTION: "ingestion", pb.PERSISTENCE: "persistence"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION_MAX: Final = 2**32 - 1
"""What a request has room for; how many a topic has the nodes know."""


def checked_topic(name: str) -> str:
    """Return `name` if a user may give it to a topic.

    Raises:
        InvalidTopicError: it breaks a rule.
        InvalidRequestError: it is no text.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"a topic's name is text, not {name!r}")
    try:
        check_topic_name(name)
    except ProtocolError as error:
        raise error_of_local(error) from error
    return name


def checked_group(name: str) -> str:
    """Return `name` if a group may be called that.

    Raises:
        InvalidRequestError: it breaks a rule.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"a group's name is text, not {name!r}")
    try:
        check_group_name(name)
    except ProtocolError as error:
        raise error_of_local(error) from error
    return name


def checked_positions(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return a copy of positions to commit, if they are some.

    Raises:
        InvalidRequestError: they are none.
    """
    if not isinstance(positions, Mapping):
        raise InvalidRequestError(f"positions to commit are partition -> next offset to read, not {positions!r}")
    for where, offset in positions.items():
        if not isinstance(where, TopicPartition):
            raise InvalidRequestError(
                f"of which topic is partition {where!r}? positions to commit are TopicPartition(...) -> offset"
            )
        check_position(where, offset)
    return dict(positions)


def check_position(where: TopicPartition, offset: int) -> None:
    """Refuse what is no position: there can be no such partition or offset.

    Raises:
        InvalidRequestError: that is so.
    """
    if not _is_number(where.partition):
        raise InvalidRequestError(f"a partition of {where.topic!r} is a number, not {where.partition!r}")
    if not _is_number(offset):
        raise InvalidRequestError(
            f"an offset to commit for {where.topic}/{where.partition} is a number, not {offset!r}"
        )
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequestError(f"{offset} is no offset to commit for {where.topic}/{where.partition}")
    if not 0 <= where.partition <= _PARTITION_MAX:
        raise InvalidRequestError(f"{where.partition} is no partition of {where.topic!r} to commit for")


def _is_number(given: object) -> bool:
    """Whether something is a whole number, of whichever library."""
    return hasattr(given, "__index__")


def topic_of(info: pb.TopicInfo, partitions: Iterable[Partition] | None = None) -> Topic:
    """Return a described topic; `partitions` where not all are in `info`.

    Raises:
        TidelogError: the error that stands in its place.
    """
    if info.HasField("error"):
        raise error_of(info.error)
    told = map(partition_of, info.partitions) if partitions is None else partitions
    return Topic(
        name=info.name,
        topic_id=info.topic_id,
        partitions=tuple(sorted(told, key=lambda each: each.partition)),
        count=info.config.partitions,
        **settings_of(info.config),
    )


def partition_of(info: pb.PartitionInfo) -> Partition:
    """Return a described partition."""
    return Partition(
        partition=info.partition,
        owner=info.owner,
        epoch=info.epoch,
        placement=tuple(info.placement),
        log_start_offset=info.log_start_offset,
        high_watermark=info.high_watermark,
        size_bytes=info.size_bytes,
        state=info.state,
        replicas=tuple(
            Replica(
                one.node_id,
                one.held_offset,
                one.lag,
                one.streaming,
                one.latency_us,
                one.missing_epochs,
                one.missing_records,
                one.copy_fault,
            )
            for one in info.replicas
        ),
        oldest_append_us=info.oldest_append_us,
        newest_append_us=info.newest_append_us,
        next_deletion=_next_deletion(info),
        unindexed_bytes=info.unindexed_bytes,
    )


def _next_deletion(partition: pb.PartitionInfo) -> NextDeletion | None:
    if not partition.HasField("next_deletion"):
        return None
    told = partition.next_deletion
    return NextDeletion(
        below=told.below,
        size_bytes=told.size_bytes,
        at_us=told.at_us or None,
        bytes_more=told.bytes_more if told.bounded else None,
    )


def status_of(reply: pb.ClusterStatusReply) -> ClusterStatus:
    """Return the cluster's status."""
    nodes = tuple(
        Node(
            node_id=status.node.node_id,
            host=status.node.host,
            port=status.node.port,
            zone=status.node.zone,
            incarnation=status.node.incarnation,
            alive=status.node.alive,
            software=status.software,
            uptime_ms=status.uptime_ms,
            connections=status.connections,
            in_flight_bytes=status.in_flight_bytes,
            data_bytes=status.data_bytes,
            disk_free_bytes=status.disk_free_bytes,
            state=status.state,
            roles=tuple(_ROLE_NAME[role] for role in status.roles if role in _ROLE_NAME),
            membership=status.membership,
            draining=status.draining,
            no_quorum=status.no_quorum,
            certificate_ends_us=status.certificate_ends_us or None,
            ca_ends_us=status.ca_ends_us or None,
            level=status.level or None,
        )
        for status in reply.nodes
    )
    return ClusterStatus(reply.cluster_id, nodes, tuple(topic_of(info) for info in reply.topics), reply.level or None)


def list_offsets_entry(topic_id: bytes, partition: int, at: At | NewestOf) -> pb.ListOffsetsEntry:
    """Return one question of LIST_OFFSETS.

    Raises:
        InvalidRequestError: `at` is no point in a log.
    """
    if at == "earliest":
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, earliest=True)
    if at == "latest":
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, latest=True)
    if isinstance(at, NewestOf):
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, latest_of_key=at.key)
    if isinstance(at, datetime):
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, timestamp_us=microseconds(at))
    if type(at) is int:
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, timestamp_us=at)
    raise InvalidRequestError(f"{at!r} is no point in a log; use 'earliest', 'latest', a datetime or µs since 1970")


def microseconds(moment: datetime) -> int:
    """Return µs since 1970.

    Raises:
        InvalidRequestError: the moment has no time zone, so it could be any of 24.
    """
    if moment.tzinfo is None:
        raise InvalidRequestError(f"{moment} has no time zone; use datetime(..., tzinfo=timezone.utc)")
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def offset_of(result: pb.ListOffsetsResult, *, by_time: bool) -> Offset:
    """Return an answer of LIST_OFFSETS.

    Raises:
        TidelogError: the error that stands in its place.
    """
    if result.HasField("error"):
        raise error_of(result.error)
    return Offset(
        offset=result.offset,
        found=result.found or not by_time,
        timestamp_us=result.timestamp_us,
        log_start_offset=result.log_start_offset,
        high_watermark=result.high_watermark,
    )


def committed_of(results: Iterable[pb.CommittedResult], names: Mapping[bytes, str]) -> list[Committed]:
    """Return the positions that were found; topics without a name in `names` are gone and left out.

    Raises:
        TidelogError: the first error among the results.
    """
    positions: list[Committed] = []
    for result in results:
        if result.HasField("error"):
            raise error_of(result.error)
        if result.found and result.topic_id in names:
            positions.append(
                Committed(
                    topic=names[result.topic_id],
                    partition=result.partition,
                    next_offset=result.next_offset,
                    note=result.note,
                    commit_timestamp_us=result.commit_timestamp_us,
                    epoch=result.record_epoch if result.HasField("record_epoch") else None,
                )
            )
    return positions
