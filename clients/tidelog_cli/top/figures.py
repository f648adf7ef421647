"""The rows of `tidelog top`, computed from two samples of a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidelog import ClusterStatus, Partition
from tidelog_cli.cluster.command import NO_ANSWER, has_unknown_offsets, state_text
from tidelog_cli.top.sampling import Sample

_Ends = Mapping[tuple[bytes, int], int]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A row of the tab `nodes`; None for unknown values."""

    node: str
    address: str
    zone: str
    state: str
    owns: int
    records_per_s: float | None
    connections: int | None
    data_bytes: int | None
    disk_free_bytes: int | None
    uptime_s: int | None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A row of the tab `topics`; sizes are those of one replica, over the partitions that nodes have reported."""

    topic: str
    partitions: int
    copies: int
    records: int
    records_per_s: float | None
    size_bytes: int
    largest_lag: int | None
    """Largest lag of the sampled groups; None if no sampled group reads the topic."""
    trouble: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A row of the tab `partitions`; None for values that no reachable node knows."""

    topic: str
    partition: int
    owner: str
    epoch: int
    state: str
    copies: int
    slowest_lag: int | None
    records: int | None
    records_per_s: float | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of the tab `groups`; the lag is None if it was not sampled, or access is denied."""

    group: str
    state: str
    members: int
    positions: int
    lag: int | None
    lag_per_s: float | None
    coordinator: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The rows of all tabs, and the sum of the partitions' rates."""

    nodes: Sequence[NodeRow]
    topics: Sequence[TopicRow]
    partitions: Sequence[PartitionRow]
    groups: Sequence[GroupRow]
    records_per_s: float | None

    def document(self) -> dict[str, Any]:
        """Return the JSON object that `--json` prints."""
        return asdict(self)


def figures_of(sample: Sample, before: Sample | None = None, *, internal: bool = False) -> Figures:
    """Return the rows of a sample, with rates since an earlier one.

    Args:
        before: an earlier sample; None for no rates.
        internal: include internal topics.
    """
    partitions = _partition_rows(sample, before, internal=internal)
    by_topic: defaultdict[str, list[PartitionRow]] = defaultdict(list)
    by_owner: defaultdict[str, list[PartitionRow]] = defaultdict(list)
    for row in partitions:
        by_topic[row.topic].append(row)
        by_owner[row.owner].append(row)
    topics = [
        TopicRow(
            topic.name,
            len(topic.partitions),
            topic.replication_factor,
            sum(row.records or 0 for row in by_topic[topic.name]),
            _total(by_topic[topic.name]),
            sum(row.size_bytes or 0 for row in by_topic[topic.name]),
            max((lags[topic.name] for lags in sample.lags.values() if topic.name in lags), default=None),
            _trouble(by_topic[topic.name]),
        )
        for topic in sample.status.topics
        if internal or not topic.name.startswith("__")
    ]
    return Figures(
        _node_rows(sample.status, by_owner), topics, partitions, _group_rows(sample, before), _total(partitions)
    )


def _partition_rows(sample: Sample, before: Sample | None, *, internal: bool) -> list[PartitionRow]:
    ends = {} if before is None else _ends(before.status)
    passed_s = 0.0 if before is None else sample.at_s - before.at_s
    rows: list[PartitionRow] = []
    for topic in sample.status.topics:
        if topic.name.startswith("__") and not internal:
            continue
        for each in topic.partitions:
            is_known = not has_unknown_offsets(each)
            rate = _rate(each, ends.get((topic.topic_id, each.partition)), passed_s) if is_known else None
            rows.append(
                PartitionRow(
                    topic.name,
                    each.partition,
                    each.owner,
                    each.epoch,
                    each.state,
                    len(each.placement),
                    max((replica.lag for replica in each.replicas), default=0) if is_known else None,
                    each.high_watermark - each.log_start_offset if is_known else None,
                    rate,
                    each.size_bytes if is_known else None,
                )
            )
    return rows


def _ends(status: ClusterStatus) -> _Ends:
    return {
        (topic.topic_id, each.partition): each.high_watermark
        for topic in status.topics
        for each in topic.partitions
        if not has_unknown_offsets(each)
    }


def _rate(partition: Partition, end_before: int | None, passed_s: float) -> float | None:
    """Return records per second; None without an earlier end or elapsed time, or if the log was truncated since."""
    if end_before is None or passed_s <= 0 or partition.high_watermark < end_before:
        return None
    return (partition.high_watermark - end_before) / passed_s


def _total(rows: Sequence[PartitionRow]) -> float | None:
    """Return the sum of known rates; None if no rate is known."""
    known = [row.records_per_s for row in rows if row.records_per_s is not None]
    return sum(known) if known else None


def _trouble(rows: Sequence[PartitionRow]) -> str:
    """Return the unusual states of a topic's partitions; "" if all states are usual."""
    counts: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        if row.state not in {"active", "idle"}:
            counts[row.state] += 1
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _node_rows(status: ClusterStatus, by_owner: Mapping[str, Sequence[PartitionRow]]) -> list[NodeRow]:
    rows: list[NodeRow] = []
    for node in status.nodes:
        owned = by_owner.get(node.node_id, ())
        has_answered = node.state != NO_ANSWER
        rows.append(
            NodeRow(
                node.node_id,
                f"{node.host}:{node.port}",
                node.zone,
                state_text(node),
                len(owned),
                _total(owned),
                node.connections if has_answered else None,
                node.data_bytes if has_answered else None,
                node.disk_free_bytes if has_answered else None,
                node.uptime_ms // 1000 if has_answered else None,
            )
        )
    return rows


def _group_rows(sample: Sample, before: Sample | None) -> list[GroupRow]:
    rows: list[GroupRow] = []
    for group in sample.groups:
        lag = _lag(sample, group.name)
        lag_before = None if before is None else _lag(before, group.name)
        change = None
        if before is not None and lag is not None and lag_before is not None and sample.at_s > before.at_s:
            change = (lag - lag_before) / (sample.at_s - before.at_s)
        rows.append(
            GroupRow(group.name, group.state, group.member_count, group.position_count, lag, change, group.coordinator)
        )
    return rows


def _lag(sample: Sample, group: str) -> int | None:
    lags = sample.lags.get(group)
    return None if lags is None else sum(lags.values())
