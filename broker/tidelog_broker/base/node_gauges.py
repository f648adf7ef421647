"""Gauges of a whole node and of the groups that it coordinates, computed while Prometheus waits for them.

Nothing here is kept current between two scrapes, so no request pays for it. A scrape runs on a thread beside the event
loop and only reads. Series with a label for each partition or position are bounded: `tidelog_metrics_omitted` counts
the omitted ones, and the counts without such labels are always complete.
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
"""The roles of this node for a stored partition; idle: its log is not open."""

_TRIES: Final = 5

_ReadT = TypeVar("_ReadT")


def read_beside_loop(read: Callable[[], _ReadT]) -> _ReadT:
    """Return what `read` returns; read again where the event loop has changed a dict under its iteration.

    Raises:
        RuntimeError: it did so each time.
    """
    for _ in range(_TRIES - 1):
        try:
            return read()
        except (RuntimeError, IndexError):
            continue
    return read()


class NodeFigures(NamedTuple):
    """The figures of a node that its metrics export.

    Attributes:
        node_id, zone, cluster_id: which node it is.
        is_ready: whether `/readyz` answers 200.
        disk_free_bytes, disk_size_bytes: of the file system of the data directory; free is what the node may use.
        disk_full: whether appends find no space.
        partitions: how many are stored here, by role.
        under_replicated: how many are owned here and have fewer copies that keep up than their topics ask for.
        no_quorum: how many have a copy here and too few living replicas to take records.
        no_owner: how many have a copy here and no living owner.
        failed: how many have a copy here that takes no part any more.
        nodes: how many nodes of the cluster gossip has in which state.
        replica_lag: how many records the slowest copy at each other node lacks, of partitions owned here.
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


_PLAIN: Final = (
    ("is_ready", "tidelog_ready", "1 while /readyz answers 200"),
    (
        "disk_free_bytes",
        "tidelog_disk_free_bytes",
        "Bytes that the node can still write to the file system of its data",
    ),
    ("disk_size_bytes", "tidelog_disk_size_bytes", "Bytes of the file system of the data directory"),
    ("disk_full", "tidelog_disk_full", "1 while appends fail because the disk is full"),
    (
        "under_replicated",
        "tidelog_under_replicated_partitions",
        "Partitions owned here with fewer up-to-date copies than their topics require",
    ),
    (
        "no_quorum",
        "tidelog_no_quorum_partitions",
        "Partitions with a copy here and too few living replicas to take records",
    ),
    ("no_owner", "tidelog_no_owner_partitions", "Partitions with a copy here and no living owner"),
    (
        "failed",
        "tidelog_failed_partitions",
        "Partitions with a failed copy here: damaged, or its log cannot be written",
    ),
)
_BY_LABEL: Final = (
    ("partitions", "tidelog_partitions", "Partitions stored here, by the node's role", "role"),
    ("nodes", "tidelog_nodes", "Nodes of the cluster, by their state in this node's gossip", "membership"),
    (
        "replica_lag",
        "tidelog_replica_lag_records",
        "Records that a node lacks of the partition owned here of which it lacks most",
        "peer",
    ),
)


class NodeGauges(Collector):
    """Tells `NodeFigures`; before `watch`, of the build alone."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self._version = version
        self._figures: Callable[[], NodeFigures | None] = lambda: None
        registry.register(self)

    def watch(self, figures: Callable[[], NodeFigures]) -> None:
        """Tell of these from now on; `figures` is called by any thread."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield what is so now."""
        what = "Always 1; the labels say what runs"
        yield _info("tidelog_build_info", what, {"version": self._version, "python": platform.python_version()})
        figures = read_beside_loop(self._figures)
        told = (
            None if figures is None else {"node": figures.node_id, "zone": figures.zone, "cluster": figures.cluster_id}
        )
        yield _info("tidelog_node_info", "Always 1; the labels say which node it is", told)
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
    """A committed position."""

    group: str
    topic: str
    partition: int
    next_offset: int


class Bounded(NamedTuple):
    """The exported positions, and the number of omitted ones."""

    positions: Iterable[GroupPosition]
    omitted: int


class GroupGauges(Collector):
    """Tells the positions of the groups that a node coordinates: what a group's lag is computed from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read: Callable[[], Bounded] = lambda: Bounded((), 0)
        self.omitted = 0
        """How many were left out of the newest answer."""
        registry.register(self)

    def watch(self, read: Callable[[], Bounded]) -> None:
        """Tell of these from now on; `read` is called by any thread."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield what is so now."""
        family = GaugeMetricFamily(
            "tidelog_group_next_offset",
            "The next record that a group reads of a partition, exported by the coordinator of the group",
            labels=["group", "topic", "partition"],
        )
        told = read_beside_loop(self._read)
        self.omitted = told.omitted
        for each in told.positions:
            family.add_metric([each.group, each.topic, str(each.partition)], each.next_offset)
        yield family
