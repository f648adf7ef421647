"""Conversion of topics and cluster status from wire messages to the client's values. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.errors import error_of
from tidelog.model import ClusterStatus, NextDeletion, Node, Partition, Replica, StoredEpochs, Topic
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import values_of

_ROLE_NAME: Final[Mapping[int, str]] = {pb.INGESTION: "ingestion", pb.PERSISTENCE: "persistence"}


def topic_of(info: pb.TopicInfo, partitions: Iterable[Partition] | None = None) -> Topic:
    """Return the topic of `info`.

    Args:
        partitions: all partitions of the topic, if `info` does not have all of them; None: those of `info`.

    Raises:
        TidelogError: the error that the node returned for the topic.
    """
    if info.HasField("error"):
        raise error_of(info.error)
    described = map(partition_of, info.partitions) if partitions is None else partitions
    return Topic(
        name=info.name,
        topic_id=info.topic_id,
        partitions=tuple(sorted(described, key=lambda each: each.partition)),
        count=info.config.partitions,
        schema_number=info.schema_number,
        **values_of(info.config),
    )


def partition_of(info: pb.PartitionInfo) -> Partition:
    """Return the partition of `info`."""
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
        stored=tuple(StoredEpochs(one.first, one.last, one.engine) for one in info.stored),
        unapplied=info.unapplied,
    )


def _next_deletion(partition: pb.PartitionInfo) -> NextDeletion | None:
    if not partition.HasField("next_deletion"):
        return None
    deletion = partition.next_deletion
    return NextDeletion(
        below=deletion.below,
        size_bytes=deletion.size_bytes,
        at_us=deletion.at_us or None,
        bytes_more=deletion.bytes_more if deletion.bounded else None,
    )


def status_of(reply: pb.ClusterStatusReply) -> ClusterStatus:
    """Return the status of the cluster."""
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
