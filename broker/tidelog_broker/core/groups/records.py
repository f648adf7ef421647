"""What `__offsets` says of groups beside their positions: the newest record of each, as far as the log is applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from tidelog_proto import broker_pb2 as pb

RECORD_BYTES: Final = 600
MEMORY_FACTOR: Final = 8
"""Bytes of memory for each of a record: as a message, and as what a coordinator makes of it."""


class GroupRecords:
    """Group -> its newest durable record. Of two the one with the higher revision holds, whichever comes first."""

    def __init__(self) -> None:
        self._records: dict[str, pb.GroupRecord] = {}
        self._made: Counter[str] = Counter()
        self.size_bytes = 0
        """About what they take in memory."""

    def apply(self, record: pb.GroupRecord) -> bool:
        """Take a durable record; return whether it says something new. One that deletes is not kept.

        Deletions are not reordered with what they delete: no snapshot is written while one is on its way.
        """
        standing = self._records.get(record.group)
        if standing is not None and standing.revision >= record.revision:
            return False
        if standing is not None:
            self.size_bytes -= _size_bytes(standing)
            self._count(standing.creator, -1)
        if record.deleted:
            self._records.pop(record.group, None)
        else:
            self._records[record.group] = record
            self.size_bytes += _size_bytes(record)
            self._count(record.creator, 1)
        return True

    def get(self, group: str) -> pb.GroupRecord | None:
        """Return a group's record."""
        return self._records.get(group)

    def names(self) -> Collection[str]:
        """The groups that have one."""
        return self._records.keys()

    def made_by(self, creator: str) -> int:
        """Return how many of them a principal has made."""
        return self._made[creator]

    def forget_all(self) -> None:
        """Drop everything."""
        self._records.clear()
        self._made.clear()
        self.size_bytes = 0

    def records(self) -> Iterator[pb.GroupRecord]:
        """Yield everything that stands: a snapshot."""
        yield from self._records.values()

    def _count(self, creator: str, more: int) -> None:
        if creator:
            self._made[creator] += more
            if not self._made[creator]:
                del self._made[creator]


def _size_bytes(record: pb.GroupRecord) -> int:
    return RECORD_BYTES + MEMORY_FACTOR * record.ByteSize()


def wrapped(record: pb.GroupRecord) -> pb.OffsetsValue:
    """Return a group's record as the value of a record of `__offsets`."""
    return pb.OffsetsValue(group=record)


def group_in(value: bytes) -> pb.GroupRecord | None:
    """Return the group's record that a value of `__offsets` holds; None where it is a position."""
    read = pb.OffsetsValue.FromString(value)
    return read.group if read.HasField("group") else None
