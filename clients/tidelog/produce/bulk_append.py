"""Bulk append of records as lists, for the gateway."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.model import TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.receipts import PendingRows
from tidelog.produce.record_preparation import RecordPreparation


class BulkAppender:
    """Appends lists of records to the open batch of one producer.

    Args:
        preparation: the producer's; records are appended only if it leaves them unchanged.
        accumulator: the producer's.
        known_route: returns the topic's cached route or None; raises TidelogError if the producer is closed.
    """

    def __init__(
        self,
        preparation: RecordPreparation,
        accumulator: RecordAccumulator,
        known_route: Callable[[int | None], TopicRoute | None],
    ) -> None:
        self._preparation = preparation
        self._accumulator = accumulator
        self._known_route = known_route

    def put(self, rows: RecordLists) -> PendingRows | None:
        """Accept all records or none, without waiting.

        Return None if that needs waiting: the topic or a partition is not cached, the buffer is full, or the records
        exceed a batch.

        Raises:
            TidelogError: the producer is closed.
        """
        route = self._known_route(None)
        if route is None or not self._preparation.plain:
            return None
        if rows.partitions and not all(number is None or number in route.partitions for number in rows.partitions):
            return None
        accepted = self._accumulator.accept_lists(rows, route.partition_count)
        if accepted is not None and rows.trace:
            accepted[0].traces += (rows.trace,)
        return None if accepted is None else PendingRows(*accepted, len(rows.values))
