"""One read over all partitions of a topic.

The high watermarks of all partitions are requested first, so that only partitions with records are fetched. Partitions
are read round-robin: in ascending order from the partition that the cursor names. The next response begins with the
partition after the last one that was read, so that a busy partition does not starve the others.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final, Literal, NamedTuple

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.errors import OffsetOutOfRangeError
from tidelog.model import Offset
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.resume_tokens import Scope
from tidelog_gateway.reading.body import RecordsBody
from tidelog_gateway.reading.partition_route import LOOK_S, RecordFilter, native_bytes
from tidelog_gateway.reading.row_selection import RowSelection
from tidelog_gateway.reading.topic_cursor import Cursor, cursor_in, cursor_text

FETCHES_MAX: Final = 256
"""Maximum number of fetches for one response."""
GAPS_SHOWN_MAX: Final = 20


class Begin(NamedTuple):
    """Start of a read: a cursor; if that is None, an end of the log or a time."""

    cursor: str | None
    at: Literal["earliest", "latest"] | datetime = "earliest"


class TopicRead:
    """A read of a topic, created by `opened`.

    Attributes:
        positions: partition -> next offset, for all partitions.
        first: the first partition of the next response.
    """

    def __init__(
        self, gateway: Gateway, scope: Scope, ends: dict[int, Offset], cursor: Cursor, rows: RowSelection | None
    ) -> None:
        self.scope = scope
        self._fields = None if rows is None else rows.fields
        self.first = cursor.first if cursor.first in ends else 0
        self.positions = {
            number: cursor.positions.get(number, log.log_start_offset) for number, log in sorted(ends.items())
        }
        self._gateway = gateway
        self._ends = ends
        self._check_bounds()

    @classmethod
    async def opened(
        cls,
        gateway: Gateway,
        topic: str,
        record_filter: RecordFilter,
        begin: Begin,
        rows: RowSelection | None = None,
    ) -> TopicRead:
        """Look up the bounds of all partitions, and return a read that begins at the given position.

        Args:
            rows: selects the fields of rows; None: all.

        Raises:
            Problem: 422, 410: see `cursor_in`; also for a position that is out of range.
            TidelogError: as `Client.topic`, `Client.list_offsets`.
        """
        described = await gateway.client.topic(topic)
        scope = Scope(topic, described.topic_id, *record_filter)
        cursor = None if begin.cursor is None else cursor_in(begin.cursor, scope)
        is_timed = isinstance(begin.at, datetime) and cursor is None
        numbers = [partition.partition for partition in described.partitions]
        ends = await gateway.client.list_offsets(topic, begin.at if is_timed else "latest", numbers)
        if cursor is None:
            positions = {} if begin.at == "earliest" else {number: end.offset for number, end in ends.items()}
            cursor = Cursor(positions)
        return cls(gateway, scope, ends, cursor, rows)

    @property
    def caught_up(self) -> bool:
        """Whether every partition was read to the high watermark that was looked up last."""
        return all(self._ends[number].high_watermark <= offset for number, offset in self.positions.items())

    def cursor(self, chars_max: int) -> str:
        """Return the cursor of the next read.

        Raises:
            Problem: 422, the cursor is too long.
        """
        return cursor_text(self.scope, self.positions, self.first, chars_max=chars_max)

    async def refresh(self) -> None:
        """Look up the high watermarks again, also of partitions that were added to the topic."""
        described = await self._gateway.client.topic(self.scope.topic)
        if described.topic_id != self.scope.topic_id:
            raise deleted_topic_error(self.scope.topic)
        # The metadata of a lagging node may lack new partitions.
        numbers = {*self.positions, *(partition.partition for partition in described.partitions)}
        ends = await self._gateway.client.list_offsets(self.scope.topic, "latest", sorted(numbers))
        self._ends = ends
        for number, log in sorted(ends.items()):
            self.positions.setdefault(number, log.log_start_offset)
        self._check_bounds()

    async def take(self, body: RecordsBody) -> None:
        """Write records into the body until it is full, all partitions were read, or a limit of the request is reached.

        Raises:
            Problem: 410, retention has deleted the next record; 422, the first record does not fit the encoding; 499,
                503: as `RecordsBody.take`.
            TidelogError: as `Client.fetch`.
        """
        behind = [number for number, log in self._ends.items() if self.positions[number] < log.high_watermark]
        order = [*(number for number in sorted(behind) if number >= self.first), *sorted(behind)]
        look_until = time.monotonic() + LOOK_S
        fetches = 0
        for number in dict.fromkeys(order):
            while self.positions[number] < self._ends[number].high_watermark:
                if body.is_full or fetches >= FETCHES_MAX or time.monotonic() > look_until:
                    return
                if not await self._take_some(number, body):
                    return
                fetches += 1
            self.first = self._partition_after(number)

    async def _take_some(self, number: int, body: RecordsBody) -> bool:
        """Fetch once from a partition; False if the response ends."""
        size_bytes = native_bytes(max(1, body.records_left), max(1, body.bytes_left))
        await body.pace()
        await body.reserve(2 * size_bytes)
        try:
            fetched = await self._gateway.client.fetch(
                self.scope.topic,
                number,
                self.positions[number],
                max_bytes=size_bytes,
                key=self.scope.key,
                tag=self.scope.tag,
                topic_id=self.scope.topic_id,
                fields=self._fields,
            )
        except OffsetOutOfRangeError as error:
            self.first = number
            if body.records:
                return False
            gone = Offset(error.log_start_offset, False, 0, error.log_start_offset, error.high_watermark)
            self._ends[number] = gone
            self._check_bounds()
            raise
        self.positions[number] = await body.take(number, fetched)
        self.first = self._partition_after(number)
        if body.fault is not None:
            self.first = number
            if not body.records:
                beyond = {**self.positions, number: body.fault.offset + 1}
                raise body.fault.problem({"next_cursor": cursor_text(self.scope, beyond, number)})
        return body.fault is None

    def _partition_after(self, number: int) -> int:
        """Return the next partition of the round-robin."""
        return number + 1 if number + 1 in self.positions else 0

    def _check_bounds(self) -> None:
        """Refuse positions that are out of range; the error has the cursor that skips all gaps."""
        for number, offset in self.positions.items():
            log = self._ends[number]
            if offset > log.high_watermark:
                detail = (
                    f"partition {number}: offset {offset} does not exist yet, the log ends at {log.high_watermark}; "
                    "begin without a cursor"
                )
                bounds = {"log_start_offset": log.log_start_offset, "high_watermark": log.high_watermark}
                raise Problem(422, "offset_out_of_range", detail, extra={"partition": number, **bounds})
        gone = {n: at for n, at in self.positions.items() if at < self._ends[n].log_start_offset}
        if not gone:
            return
        beyond = {**self.positions, **{number: self._ends[number].log_start_offset for number in gone}}
        gaps = [
            {"partition": number, "offset": offset, "log_start_offset": beyond[number]}
            for number, offset in list(gone.items())[:GAPS_SHOWN_MAX]
        ]
        number, offset = next(iter(gone.items()))
        detail = (
            f"partition {number}: offset {offset} was deleted, the log begins at {beyond[number]}"
            + (f"; the same applies to {len(gone) - 1} more partitions" if len(gone) > 1 else "")
            + "; to skip the deleted records, continue with next_cursor"
        )
        cursor = cursor_text(self.scope, beyond, self.first)
        raise Problem(410, "offset_out_of_range", detail, extra={"gaps": gaps, "next_cursor": cursor})
