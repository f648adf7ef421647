"""Merging the reports of several nodes about the same partitions.

Each node knows its own copies. For a partition the newest epoch counts, and in it the owner's report; only the node of
a copy knows whether the copy has all of the history, is in doubt or is damaged: an owner knows that it does not
acknowledge, not why. Rejected: replicas that report missing history to their owner, which would be more state to keep
consistent between nodes for a question that an operator asks rarely.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb

_DAMAGED_STATES: Final = frozenset({"limbo", "failed", "away", "no owner"})
"""States of a copy that is damaged or missing."""

_STATES_WITHOUT_OFFSETS: Final = frozenset({"idle", "away", "no owner"})
"""States without offsets: the node's log is not open, or the node has no log."""


class _ReportedFaults(NamedTuple):
    """A node's report about its copy: the history missing in sealed epochs, and other faults."""

    epochs: int
    records: int
    fault: str

    @classmethod
    def of(cls, info: pb.PartitionInfo) -> _ReportedFaults:
        return cls(info.missing_epochs, info.missing_records, info.copy_fault)


def reports_by_topic(replies: Iterable[pb.ClusterStatusReply]) -> dict[bytes, dict[str, pb.TopicInfo]]:
    """Return, by topic id, each node's report. Every reply is a node's report about itself."""
    found: dict[bytes, dict[str, pb.TopicInfo]] = {}
    for reply in replies:
        for topic in reply.topics if reply.nodes else ():
            found.setdefault(topic.topic_id, {})[reply.nodes[0].node.node_id] = topic
    return found


def merge_topic(node_id: str, own: pb.TopicInfo, reports: Mapping[str, pb.TopicInfo]) -> None:
    """Update `node_id`'s report on a topic's partitions with the best known state."""
    for partition in own.partitions:
        infos = _about(partition.partition, reports)
        lacks = {teller: _ReportedFaults.of(info) for teller, info in infos.items()} | {
            node_id: _ReportedFaults.of(partition)
        }
        infos[node_id] = partition
        best = infos[_best(infos)]
        if best is not partition:
            partition.CopyFrom(best)
        for replica in partition.replicas:
            epochs, records, fault = lacks.get(replica.node_id, _ReportedFaults(0, 0, ""))
            replica.missing_epochs, replica.missing_records = epochs + bool(fault), records
            replica.copy_fault = fault


def removal_fault(node_id: str, replies: Mapping[str, pb.ClusterStatusReply]) -> str:
    """Return why removing a node now could lose records, for the operator; empty if it could not.

    History follows a partition to its new nodes long after its open epoch has moved. Until a majority of those have all
    of the history, and no node that answers is still fetching, the removed node may hold the only copy of some records.
    A copy that is in doubt or damaged does not count. If the node is in the placement of the open epoch, only copies
    with all committed records, as the owner knows, count. A replica that does not answer does not count, and does not
    delay the removal.

    Args:
        replies: the status of each node that has answered, by node.
    """
    for topics in reports_by_topic(replies.values()).values():
        for partition in next(iter(topics.values())).partitions:
            infos = _about(partition.partition, topics)
            best = infos[_best(infos)]
            others = [node for node in best.placement if node != node_id]
            known = {node: info for node, info in infos.items() if node in others and info.epoch == best.epoch}
            name = f"{next(iter(topics.values())).name}/{partition.partition}"
            for node, info in sorted(known.items()):
                if info.missing_epochs:
                    return (
                        f"node {node!r} still fetches {info.missing_records:,} older records of {name}, and node "
                        f"{node_id!r} may have the only copy of them; wait until `tidelog cluster status --internal` "
                        "shows no missing records"
                    )
            if not others:
                return f"node {node_id!r} has the only copy of {name}; add another replica first"
            held = {replica.node_id: replica.held_offset for replica in best.replicas}
            # This node may have acknowledged records of the open epoch that another copy lacks.
            if node_id in best.placement:
                known = {node: info for node, info in known.items() if held.get(node, -1) >= best.high_watermark}
            awaited = [_awaited_node(node, known.get(node)) for node in others]
            whole = awaited.count("")
            if whole < min(len(others), len(best.placement) // 2 + 1):
                return (
                    f"{name}: only {whole} of {len(others)} other copies are known to be complete, and node "
                    f"{node_id!r} may have the missing records; wait for {', '.join(filter(None, awaited))}, or repair "
                    "their copies"
                )
    return ""


def _awaited_node(node_id: str, info: pb.PartitionInfo | None) -> str:
    """Return a node whose copy does not count, with the reason if it is known; empty if the copy is complete."""
    if info is None:
        return repr(node_id)
    fault = info.copy_fault or (info.state if info.state in _DAMAGED_STATES else "")
    return f"{node_id!r} ({fault})" if fault else ""


def _about(partition: int, reports: Mapping[str, pb.TopicInfo]) -> dict[str, pb.PartitionInfo]:
    """Return the reports on a partition by node; the partitions of each `TopicInfo` must be sorted."""
    found: dict[str, pb.PartitionInfo] = {}
    for teller, topic in reports.items():
        at = bisect_left(topic.partitions, partition, key=_number_of)
        if at < len(topic.partitions) and topic.partitions[at].partition == partition:
            found[teller] = topic.partitions[at]
    return found


def _number_of(info: pb.PartitionInfo) -> int:
    return info.partition


def _best(infos: Mapping[str, pb.PartitionInfo]) -> str:
    """Return the node with the best report: of the newest epoch, from its owner if possible, else from a replica.

    If the owner's log is not open, the report of a node with an open log is used.
    """

    def worth(teller: str) -> tuple[int, bool, bool, bool]:
        info = infos[teller]
        return info.epoch, info.state not in _STATES_WITHOUT_OFFSETS, info.owner == teller, teller in info.placement

    return max(sorted(infos), key=worth)
