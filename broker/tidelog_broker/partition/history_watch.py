"""Watching backfill: gauges of the history that is missing, and a line in the log when no node has it.

A replica that finds none of its sources able to help asks them again and again by itself, without a word: a source may
be starting. If that goes on, it is for an operator: the only copy lies on a node that is away, or was removed.
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


class HistoryWatch:
    """See the module.

    Args:
        partitions: what this node stores.
        metrics: the node's.
    """

    def __init__(self, partitions: Callable[[], Iterable[Partition]], metrics: NodeMetrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._nowhere: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Look every few seconds, for as long as the node runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Count what is missing, and tell of what is nowhere: once when it is found out, once when it is over."""
        epochs = records = 0
        nowhere: set[str] = set()
        for partition in self._partitions():
            backfill = partition.replica.backfill
            missing = backfill.missing() if backfill.incomplete else None
            if missing is None:
                continue
            epochs += missing.epochs
            records += missing.records
            if missing.is_unavailable:
                nowhere.add(partition.name)
                if partition.name not in self._nowhere:
                    log.warning(
                        "%s: epoch %d is not whole here, and no node that stored it or a later one has it or answers; "
                        "%d records cannot be read; start the node that has them",
                        partition.name,
                        missing.epoch,
                        missing.records,
                    )
        for name in sorted(self._nowhere - nowhere):
            log.info("%s: the history that was nowhere is coming, or here", name)
        self._nowhere = frozenset(nowhere)
        self._metrics.missing_epochs.set(epochs)
        self._metrics.missing_records.set(records)
