"""Invariant I29 of a partition whose topic drops duplicates, checked record by record.

Within the window no content is twice in the committed log, and all records acknowledged as stored or duplicate exist:
each content of an acknowledged batch is in the stored batch, or in the window before it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from tests.simulation.history import Publish, PublishReply

from tidelog_broker.core.replication.producers import duplicates_in
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.batch.record_batch import RecordBatch

AGAIN: Final = 0.6
"""Probability that a record repeats the content of one of the newest."""
NEWEST: Final = 12
CLOCK_ERROR_US: Final = 100_000
"""How long before it is stamped a batch may be looked at, and a little more."""


class _Record(NamedTuple):
    content: int
    base_offset: int
    """Of its batch."""
    stamp_us: int


class Drawn:
    """Contents that producers publish to one partition: new ones, or ones that were published shortly before."""

    def __init__(self, random: Random, partition: int) -> None:
        self._random = random
        self._next = partition << 32 | 1
        self._newest: list[int] = []

    def contents(self, count: int) -> tuple[int, ...]:
        """Return the contents of a batch."""
        drawn: list[int] = []
        for _ in range(count):
            if self._newest and self._random.random() < AGAIN:
                drawn.append(self._random.choice(self._newest))
            else:
                drawn.append(self._next)
                self._next += 1
        self._newest = [*self._newest, *drawn][-NEWEST:]
        return tuple(drawn)


class LoggedContents:
    """The committed contents of a partition, in the log's order."""

    def __init__(self, *, records_max: int, age_us: int, require: Callable[[bool, str, str], None]) -> None:
        self._records_max = records_max
        self._age_us = age_us
        self._require = require
        self._written: dict[tuple[int, int], tuple[int, ...]] = {}
        self._records: list[_Record] = []
        self._before: dict[tuple[int, int], int] = {}
        """Number of records before a committed batch."""

    def wrote(self, header: BatchHeader, batch: memoryview) -> None:
        """A batch is on some disk."""
        self._written[header.epoch, header.base_offset] = contents_of(header, batch)

    def committed(self, header: BatchHeader) -> None:
        """The next batch of the log is committed."""
        where = (header.epoch, header.base_offset)
        contents = self._written[where]
        self._before[where] = len(self._records)
        window = self._window(where, header.append_timestamp_us, early_us=0)
        twice = [one for at, one in enumerate(contents) if one in window or one in contents[:at]]
        self._require(not twice, "I29", f"{twice} are in the window and again in the batch at {header.base_offset}")
        stamp_us = header.append_timestamp_us
        self._records += [_Record(content, header.base_offset, stamp_us) for content in contents]

    def acknowledged(self, publish: Publish, said: PublishReply, header: BatchHeader) -> None:
        """A publish was acknowledged with a position in a committed batch."""
        where = (said.epoch, said.base_offset)
        self._require(where in self._before, "I29", f"{publish} was acknowledged at {said}, which is not committed")
        dropped = duplicates_in(header)
        self._require(said.duplicates == dropped, "I29", f"{publish}: {said}, {dropped} records were dropped")
        self._require(len(self._written[where]) + dropped == publish.records, "I29", f"{publish} has become {header}")
        window = self._window(where, header.append_timestamp_us, early_us=CLOCK_ERROR_US)
        lost = set(publish.contents) - window - set(self._written[where])
        self._require(not lost, "I29", f"{lost} of {publish} were acknowledged as duplicates of nothing")

    def _window(self, where: tuple[int, int], stamp_us: int, *, early_us: int) -> set[int]:
        end = self._before[where]
        records = self._records[max(0, end - self._records_max) : end]
        oldest_us = stamp_us - self._age_us - early_us if self._age_us else -1
        return {record.content for record in records if record.stamp_us > oldest_us}


def contents_of(header: BatchHeader, batch: bytes | memoryview) -> tuple[int, ...]:
    """Return the contents of a batch's records; none for a batch of the broker."""
    if header.flags & Flags.CONTROL:
        return ()
    return tuple(int.from_bytes(value or b"", "big") for value in RecordBatch.parse(batch).values())
