"""Many records of bytes accepted in one step, as lists: for the gateway, whose requests bring them like that."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.model import TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.receipts import PendingRows
from tidelog.produce.record_preparation import RecordPreparation


class BulkAppender:
    """Takes lists of records for one producer.

    Args:
        preparation: what the producer makes of a record; rows come as they are.
        gatherer: what they join.
        known_route: returns the topic's route where that is known; raises TidelogError when nothing is accepted.
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
        """Accept records at once, all of them or none.

        None where they cannot be accepted at once: the topic or a partition is not known yet, the buffer is full, or
        they are more than a batch.

        Raises:
            TidelogError: nothing is accepted here any more.
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
