"""Monitoring of backfill: gauges of the records that this node has to fetch, and a warning if no node has them.

A replica without a usable source asks all sources repeatedly, because one of them may be starting. If no source answers
for long, an operator must act: the only copy is on a node that is down or was removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.partition.partition import Partition

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0


class BackfillMonitor:
    """Watches the backfill of a node's open partitions."""

    def __init__(self, partitions: Callable[[], Iterable[Partition]], metrics: NodeMetrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._nowhere: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Check every few seconds, as long as the node runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Update the gauges; log once for each partition whose missing records no node has, and once when that ends."""
        epochs = records = 0
        nowhere: set[str] = set()
        for partition in self._partitions():
            backfill = partition.replica.backfill
            missing = backfill.missing() if backfill.lacks_any else None
            if missing is None:
                continue
            epochs += missing.epochs
            records += missing.records
            if missing.is_unavailable:
                nowhere.add(partition.name)
                if partition.name not in self._nowhere:
                    log.warning(
                        "%s: %d records cannot be read: epoch %d is incomplete on this node and on each other node "
                        "that stored it and answers; start the nodes that are down",
                        partition.name,
                        missing.records,
                        missing.epoch,
                    )
        for name in sorted(self._nowhere - nowhere):
            log.info("%s: the missing records are being fetched, have been restored, or are lost on all nodes", name)
        self._nowhere = frozenset(nowhere)
        self._metrics.missing_epochs.set(epochs)
        self._metrics.missing_records.set(records)
