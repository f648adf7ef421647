"""The node as one of its partitions sees it: what it needs of all that a node has.

`Services` is one; the simulated world brings another, so that the partition itself is the one that is shipped.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.cluster.route_watch import RouteNews
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_broker.replication.rings import RingBudget
from tidelog_broker.replication.takeover_log import TakenOver
from tidelog_broker.storage.segment.disk import Disk


class PartitionNode(Protocol):
    """See the module. The attributes are those of `Services`."""

    @property
    def node_id(self) -> str:
        """What the node is called."""
        ...

    @property
    def settings(self) -> NodeSettings:
        """Sizes and bounds."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that everything here runs on."""
        ...

    @property
    def disk(self) -> Disk:
        """What the logs share."""
        ...

    @property
    def io(self) -> Offload:
        """For writes, one after the other."""
        ...

    @property
    def readers(self) -> Offload:
        """For reads that nobody's write waits for."""
        ...

    @property
    def notes(self) -> Offload:
        """For small files beside the logs, and for what a deletion waits for."""
        ...

    @property
    def rings(self) -> RingBudget:
        """The memory for newest batches."""
        ...

    @property
    def metrics(self) -> NodeMetrics:
        """What is counted."""
        ...

    @property
    def cluster(self) -> Neighbours:
        """The other nodes."""
        ...

    @property
    def taken_over(self) -> TakenOver:
        """Told of each epoch that begins here."""
        ...

    @property
    def route_news(self) -> RouteNews:
        """Told of each epoch that has ended."""
        ...

    def storage_failed(self, name: str, error: BaseException) -> None:
        """A write or sync failed: the node stops serving this disk."""
