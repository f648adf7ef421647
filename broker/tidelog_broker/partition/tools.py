"""The node's resources that every partition uses; the simulation provides its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.cluster.route_watch import RouteWatch
from tidelog_broker.core.hot_ring import RingBudget
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.compaction_progress import ProgressClock
from tidelog_broker.partition.full_disk_refusals import FullDiskRefusals
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_broker.replication.takeover_log import TakeoverLog
from tidelog_broker.storage.engine.store import Volume
from tidelog_broker.wire.budget import Budget


@dataclass(frozen=True, slots=True)
class PartitionTools:
    """The resources of a node that its partitions share."""

    settings: NodeSettings
    loop: asyncio.AbstractEventLoop
    disk: Volume
    """Resources shared by the logs."""
    io: Offload
    """For writes, in order per partition."""
    readers: Offload
    """For reads that no write waits for."""
    notes: Offload
    """For writes of small files beside the logs, and for syncs before a deletion."""
    compactor: Offload
    """For compaction passes, one at a time."""
    passes: ProgressClock
    """The progress of all compaction passes."""
    clock: SteadyClock
    """Measures the age of records."""
    contents: Budget
    """The memory budget of deduplication windows."""
    producers: ProducerBudget
    """Counts the producers whose newest batches are kept."""
    rings: RingBudget
    """The memory budget of the rings of newest batches."""
    full_disk: FullDiskRefusals
    metrics: NodeMetrics
    neighbours: Neighbours
    """The other nodes. For a publish: whether a quorum of the partition's replicas seems to be alive."""
    taken_over: TakeoverLog
    """Collects the epochs that begin on this node, for log lines."""
    schemas: SchemaRegistry
    """The schemas of typed topics."""
    route_news: RouteWatch
    """Informed of each epoch that has ended."""
    may_differ: Callable[[PartitionKey], None]
    """Called with a partition whose open epoch may have other settings than its topic: it begins on this node, or the
    topic has changed."""
    storage_failed: Callable[[str, BaseException], None]
    """Called with the name of the partition and the error after a failed write or sync: the node then stops."""
