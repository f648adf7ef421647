"""Group records of `__offsets`: the newest record of each group, up to the applied position of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from tidelog_proto import broker_pb2 as pb

RECORD_BYTES: Final = 600
MEMORY_FACTOR: Final = 8
"""Bytes of memory per byte of a record, for the message and the state that a coordinator derives from it."""


class GroupRecords:
    """The newest durable record by group; the highest revision wins."""

    def __init__(self) -> None:
        self._records: dict[str, pb.GroupRecord] = {}
        self._created_counts: Counter[str] = Counter()
        self.size_bytes = 0
        """Approximate memory of the records."""

    def apply(self, record: pb.GroupRecord) -> bool:
        """Apply a durable record; return whether it is newer. A deletion removes the group.

        Deletions need no tombstone, because no snapshot is written while one is pending.
        """
        current = self._records.get(record.group)
        if current is not None and current.revision >= record.revision:
            return False
        if current is not None:
            self.size_bytes -= _size_bytes(current)
            self._count(current.creator, -1)
        if record.deleted:
            self._records.pop(record.group, None)
        else:
            self._records[record.group] = record
            self.size_bytes += _size_bytes(record)
            self._count(record.creator, 1)
        return True

    def get(self, group: str) -> pb.GroupRecord | None:
        """Return a group's record; None if the group does not exist."""
        return self._records.get(group)

    def names(self) -> Collection[str]:
        """Return the names of the groups with a record."""
        return self._records.keys()

    def made_by(self, creator: str) -> int:
        """Return the number of groups created by a principal."""
        return self._created_counts[creator]

    def forget_all(self) -> None:
        """Drop all records."""
        self._records.clear()
        self._created_counts.clear()
        self.size_bytes = 0

    def records(self) -> Iterator[pb.GroupRecord]:
        """Yield all records, for a snapshot."""
        yield from self._records.values()

    def _count(self, creator: str, more: int) -> None:
        if creator:
            self._created_counts[creator] += more
            if not self._created_counts[creator]:
                del self._created_counts[creator]


def _size_bytes(record: pb.GroupRecord) -> int:
    return RECORD_BYTES + MEMORY_FACTOR * record.ByteSize()


def wrapped(record: pb.GroupRecord) -> pb.OffsetsValue:
    """Return a group's record as the value of a record of `__offsets`."""
    return pb.OffsetsValue(group=record)


def group_in(value: bytes) -> pb.GroupRecord | None:
    """Return the group record in a value of `__offsets`; None for a position."""
    read = pb.OffsetsValue.FromString(value)
    return read.group if read.HasField("group") else None
