"""Committed offsets of consumer groups: a last-writer-wins map whose entries are records of `__offsets`.

Every entry carries a revision that grows with each commit of its key, so the order in which records are
replayed does not matter: the highest revision holds. That lets a snapshot be written simply as the live
entries once more, with their revisions, while commits go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb


class OffsetKey(NamedTuple):
    """Whose position it is and where."""

    group: str
    topic_id: bytes
    partition: int


class GroupOffsets:
    """group, topic id, partition -> the newest `OffsetRecord`."""

    def __init__(self) -> None:
        self._records: dict[OffsetKey, pb.OffsetRecord] = {}
        self._pending: dict[OffsetKey, pb.OffsetRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def prepare(
        self, key: OffsetKey, *, next_offset: int, note: str, reset: bool, now_us: int
    ) -> pb.OffsetRecord | None:
        """Return the record to write for a commit, or None when an equal or newer position is durable.

        What was prepared but is not yet durable counts: two commits on their way keep their order. One that
        is overtaken by a pending record repeats it, so that its reply too comes after something durable.
        """
        pending = self._pending.get(key)
        newest = pending or self._records.get(key)
        if newest is not None and not reset:
            behind = next_offset < newest.next_offset
            repeated = next_offset == newest.next_offset and note == newest.note
            if behind or repeated:
                if pending is None:
                    return None
                next_offset, note = pending.next_offset, pending.note
        record = pb.OffsetRecord(
            group=key.group,
            topic_id=key.topic_id,
            partition=key.partition,
            next_offset=next_offset,
            note=note,
            commit_timestamp_us=now_us,
            revision=(newest.revision if newest else 0) + 1,
        )
        self._pending[key] = record
        return record

    def apply(self, record: pb.OffsetRecord) -> None:
        """Take a durable record; an older revision than the one that stands changes nothing."""
        key = OffsetKey(record.group, record.topic_id, record.partition)
        standing = self._records.get(key)
        if standing is None or record.revision > standing.revision:
            self._records[key] = record
        pending = self._pending.get(key)
        if pending is not None and pending.revision <= self._records[key].revision:
            del self._pending[key]

    def withdraw(self, record: pb.OffsetRecord) -> None:
        """Forget a prepared record whose write was refused."""
        key = OffsetKey(record.group, record.topic_id, record.partition)
        if self._pending.get(key) is record:
            del self._pending[key]

    def get(self, key: OffsetKey) -> pb.OffsetRecord | None:
        """Return the durable position, or None."""
        return self._records.get(key)

    def of_group(self, group: str) -> list[pb.OffsetRecord]:
        """Return every durable position of `group`, by topic and partition."""
        return [record for key, record in sorted(self._records.items()) if key.group == group]

    def forget_topic(self, topic_id: bytes) -> None:
        """Drop the positions on a deleted topic, those that are on their way included."""
        for positions in (self._records, self._pending):
            for key in [key for key in positions if key.topic_id == topic_id]:
                del positions[key]

    def records(self) -> Iterator[pb.OffsetRecord]:
        """Yield everything that stands: a snapshot."""
        yield from self._records.values()
