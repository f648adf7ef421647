"""What every partition of a node works with; the simulated world brings its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.cluster.route_watch import RouteNews
from tidelog_broker.core.hot_ring import RingBudget
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.partition.pass_watch import LastMove
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_broker.replication.takeover_log import TakenOver
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.wire.budget import Budget


@dataclass(frozen=True, slots=True)
class PartitionTools:
    """See the module."""

    settings: NodeSettings
    loop: asyncio.AbstractEventLoop
    disk: Disk
    """What the logs share."""
    io: Offload
    """For writes, one after the other."""
    readers: Offload
    """For reads that nobody's write waits for."""
    notes: Offload
    """For small files beside the logs, and for what a deletion waits for."""
    compactor: Offload
    """For passes of compaction, one at a time."""
    passes: LastMove
    """When any of them last moved."""
    clock: SteadyClock
    """Tells how old records are."""
    contents: Budget
    """The memory for contents among which duplicates are looked for."""
    producers: ProducerBudget
    """Counts whose newest batches are known."""
    rings: RingBudget
    """The memory for newest batches."""
    metrics: NodeMetrics
    neighbours: Neighbours
    """The other nodes."""
    taken_over: TakenOver
    """Told of each epoch that begins here."""
    route_news: RouteNews
    """Told of each epoch that has ended."""
    storage_failed: Callable[[str, BaseException], None]
    """Called with where a write or sync failed: the node stops serving this disk."""
