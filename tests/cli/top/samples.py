"""Samples for the tests of `tidelog top`."""

from __future__ import annotations

from tidelog import ClusterStatus, GroupInfo, Node, Partition, Topic
from tidelog.model import Replica
from tidelog_cli.top.sampling import Sample

NODES = (
    Node("log1", "h1", 7400, state="running", connections=3, data_bytes=1 << 30, disk_free_bytes=1 << 40),
    Node("log2", "h2", 7400, alive=False, state="no answer"),
)


def sample(at_s: float, end: int, *, lag: int = 0, topic_id: bytes = b"1" * 16) -> Sample:
    """Return a sample of a topic of two partitions, one of them away, and a group that is behind."""
    first = Partition(0, "log1", 3, ("log1", "log2"), 10, end, 4096, "active", (Replica("log2", end - 7, 7),))
    topics = (
        Topic("[red]orders", topic_id, (first, Partition(1, "log2", 2, ("log2",), state="away")), replication_factor=2),
        Topic("__meta", b"2" * 16, (Partition(0, "log1", 1, ("log1",), 0, end, 10, "active"),)),
    )
    group = GroupInfo("billing", "stable", 1, 2, 1, None, "log1", 5)
    return Sample(at_s, ClusterStatus(b"3" * 16, NODES, topics), (group,), {"billing": {"[red]orders": lag}})
