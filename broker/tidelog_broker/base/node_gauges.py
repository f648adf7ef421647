"""Gauges of a node and of the groups that it coordinates, computed at each scrape.

The gauges are not maintained between scrapes, so they do not slow down requests. A scrape runs on a thread outside the
event loop and only reads. The number of series with a label for a partition, a topic or a position is limited:
`tidelog_metrics_omitted` counts the omitted ones. Metrics without such a label cover all partitions and positions.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MEMBERSHIPS: Final = ("alive", "suspect", "dead", "left", "unknown")
"""The states of a node in gossip."""
ROLES: Final = ("owner", "replica", "idle")
"""The roles of this node for a local partition; idle: its log is not open."""

_TRIES: Final = 5

_ReadT = TypeVar("_ReadT")


def read_with_retries(read: Callable[[], _ReadT]) -> _ReadT:
    """Call `read` and return its result; repeat if the event loop changed a collection over which `read` iterated.

    Raises:
        RuntimeError, IndexError: a collection was changed during each of five attempts.
    """
    for _ in range(_TRIES - 1):
        try:
            return read()
        except (RuntimeError, IndexError):
            continue
    return read()


class NodeFigures(NamedTuple):
    """The exported figures of a node.

    Attributes:
        node_id, zone, cluster_id: the node's identity.
        is_ready: whether `/readyz` answers 200.
        disk_free_bytes: bytes of the data directory's file system that the node can still use.
        disk_size_bytes: size of that file system.
        disk_full: whether appends find no space.
        partitions: number of local partitions by role.
        under_replicated: number of owned partitions with fewer up-to-date copies than configured.
        no_quorum: number of local partitions with too few live replicas to accept records.
        no_owner: number of local partitions without a live owner.
        failed: number of local partitions whose copy has failed.
        nodes: number of the cluster's nodes by their state in gossip.
        replica_lag: for each other node, the records that it lacks in the owned partition where it lags most.
        feature_level: the feature level of the cluster.
        supported_feature_level: the highest feature level that the node's build supports.
    """

    node_id: str
    zone: str
    cluster_id: str
    is_ready: bool
    disk_free_bytes: int
    disk_size_bytes: int
    disk_full: bool
    partitions: Mapping[str, int]
    under_replicated: int
    no_quorum: int
    no_owner: int
    failed: int
    nodes: Mapping[str, int]
    replica_lag: Mapping[str, int]
    feature_level: int
    supported_feature_level: int


_PLAIN: Final = (
    ("is_ready", "tidelog_ready", "1 while /readyz answers 200"),
    (
        "disk_free_bytes",
        "tidelog_disk_free_bytes",
        "Bytes that the node can still write to the file system of its data",
    ),
    ("disk_size_bytes", "tidelog_disk_size_bytes", "Bytes of the file system of the data directory"),
    ("disk_full", "tidelog_disk_full", "1 while appends fail because the disk is full"),
    ("feature_level", "tidelog_feature_level", "Feature level of the cluster, which `tidelog cluster finalize` raises"),
    (
        "supported_feature_level",
        "tidelog_supported_feature_level",
        "Highest feature level that the build of this node supports",
    ),
    (
        "under_replicated",
        "tidelog_under_replicated_partitions",
        "Partitions owned by this node with fewer up-to-date copies than their topics require",
    ),
    (
        "no_quorum",
        "tidelog_no_quorum_partitions",
        "Partitions with a copy on this node and too few live replicas to accept records",
    ),
    ("no_owner", "tidelog_no_owner_partitions", "Partitions with a copy on this node and without a live owner"),
    (
        "failed",
        "tidelog_failed_partitions",
        "Partitions whose copy on this node has failed: it is damaged, or its log cannot be written",
    ),
)
_BY_LABEL: Final = (
    ("partitions", "tidelog_partitions", "Partitions with a copy on this node, by the node's role", "role"),
    ("nodes", "tidelog_nodes", "Nodes of the cluster, by their state in this node's gossip", "membership"),
    (
        "replica_lag",
        "tidelog_replica_lag_records",
        "Records that a node lacks in the partition where it lags most, of those that this node owns",
        "peer",
    ),
)


class NodeGauges(Collector):
    """Exports the values of `NodeFigures`; before `watch` is called, only `tidelog_build_info` has a value."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self._version = version
        self._figures: Callable[[], NodeFigures | None] = lambda: None
        registry.register(self)

    def watch(self, figures: Callable[[], NodeFigures]) -> None:
        """Export these figures from now on; `figures` may be called on any thread."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        what = "Always 1; the labels identify the build"
        yield _info("tidelog_build_info", what, {"version": self._version, "python": platform.python_version()})
        figures = read_with_retries(self._figures)
        identity = (
            None if figures is None else {"node": figures.node_id, "zone": figures.zone, "cluster": figures.cluster_id}
        )
        yield _info("tidelog_node_info", "Always 1; the labels identify the node", identity)
        for field, name, text in _PLAIN:
            yield GaugeMetricFamily(name, text, value=None if figures is None else float(getattr(figures, field)))
        for field, name, text, label in _BY_LABEL:
            family = GaugeMetricFamily(name, text, labels=[label])
            for key, value in ({} if figures is None else getattr(figures, field)).items():
                family.add_metric([key], value)
            yield family


def _info(name: str, text: str, labels: Mapping[str, str] | None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels or ()))
    if labels is not None:
        family.add_metric(list(labels.values()), 1)
    return family


class GroupPosition(NamedTuple):
    """A group's committed position in a partition."""

    group: str
    topic: str
    partition: int
    next_offset: int


class Bounded(NamedTuple):
    """The exported positions, and how many were omitted."""

    positions: Iterable[GroupPosition]
    omitted: int


class GroupGauges(Collector):
    """Exports the positions of the groups that a node coordinates, from which lag is computed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read: Callable[[], Bounded] = lambda: Bounded((), 0)
        self.omitted = 0
        """Number of positions omitted from the last scrape."""
        registry.register(self)

    def watch(self, read: Callable[[], Bounded]) -> None:
        """Export these positions from now on; `read` may be called on any thread."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        family = GaugeMetricFamily(
            "tidelog_group_next_offset",
            "The next record that a group reads of a partition, exported by the coordinator of the group",
            labels=["group", "topic", "partition"],
        )
        exported = read_with_retries(self._read)
        self.omitted = exported.omitted
        for each in exported.positions:
            family.add_metric([each.group, each.topic, str(each.partition)], each.next_offset)
        yield family
