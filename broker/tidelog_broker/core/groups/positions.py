"""Committed offsets of consumer groups: a last-writer-wins map whose entries are records of `__offsets`.

Every entry has a revision that increases with each commit of its key; the highest revision wins, independent of the
order of replay. A snapshot can therefore repeat the live entries, with their revisions, while commits continue.

Positions are stored by group and sorted, so that listing a group costs only its own positions. New positions are
limited: number of groups, positions per group, and total memory. Existing positions may always be updated, and durable
records are applied regardless of the limits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

GROUPS_MAX: Final = 20_000
GROUP_POSITIONS_MAX: Final = 20_000
POSITIONS_BYTES: Final = 256 * MIB
POSITION_BYTES: Final = 600
"""Approximate memory of a position without its note."""

Place = tuple[bytes, int]
"""Topic id and partition."""


class OffsetKey(NamedTuple):
    """Key of a committed position."""

    group: str
    topic_id: bytes
    partition: int


_Key = tuple[str, bytes, int]
"""An `OffsetKey` or an equal tuple, which is made in a tenth of the time."""


class GroupBounds(NamedTuple):
    """Limits of stored positions: number of groups, positions per group, and approximate bytes of all positions."""

    groups: int = GROUPS_MAX
    positions: int = GROUP_POSITIONS_MAX
    size_bytes: int = POSITIONS_BYTES


@dataclass(slots=True)
class GroupTotals:
    """Totals over all `GroupOffsets` of one node, to which the limits apply."""

    groups: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Group:
    """The positions of a group, and their sorted keys; a key without a record has only pending commits."""

    records: dict[Place, pb.OffsetRecord] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)


class GroupOffsets:
    """The newest `OffsetRecord` by group, topic id and partition, for the groups of one partition of `__offsets`.

    Args:
        bounds: limits for new positions.
        totals: shared by the maps of a node; None for a single map.
    """

    def __init__(self, bounds: GroupBounds | None = None, totals: GroupTotals | None = None) -> None:
        self._bounds = bounds or GroupBounds()
        self._totals = totals or GroupTotals()
        self._groups: dict[str, _Group] = {}
        self._of_topic: dict[bytes, set[str]] = {}
        self._pending: dict[_Key, list[pb.OffsetRecord]] = {}
        """By position, the prepared records that are neither applied nor withdrawn, by revision; never empty."""
        self._count = 0
        self.size_bytes = 0
        """Approximate memory of the durable positions."""

    def __len__(self) -> int:
        return self._count

    def prepare(self, key: OffsetKey, record: pb.OffsetRecord, *, reset: bool) -> bool:
        """Give the record of a commit its revision; return False if an equal or newer position is durable.

        Pending records count, so that concurrent commits keep their order. A commit that is older than a pending record
        repeats the pending position, so that its reply also follows a durable record.

        The record is written and applied as it is, so the caller does not change it afterwards.

        Args:
            key: the key of the record.
            record: the record, complete except for its revision. The rest does not depend on the current position, so
                the caller may create the record in advance.
            reset: whether the commit may move the position back.

        Raises:
            ProtocolError: INVALID_REQUEST if a new position or a longer note exceeds a limit.
        """
        pending = self._pending.get(key)
        newest = pending[-1] if pending else self.get(key)
        if newest is None:
            self._check_new(key)
            record.revision = 1
            self._pending[key] = [record]
            self._claim(key)
            return True
        if not reset:
            next_offset, last_offset = record.next_offset, newest.next_offset
            if next_offset < last_offset or (next_offset == last_offset and record.note == newest.note):
                if not pending:
                    return False
                _repeat(newest, record)
        if len(record.note) > len(newest.note):
            self._check_memory()
        record.revision = newest.revision + 1
        if pending:
            pending.append(record)
        else:
            self._pending[key] = [record]
        return True

    def apply(self, record: pb.OffsetRecord) -> None:
        """Apply a durable record; an older revision is ignored."""
        place = (record.topic_id, record.partition)
        key = (record.group, *place)
        pending = self._pending.get(key)
        group = self._groups.get(key[0])
        current = None if group is None else group.records.get(place)
        if current is None:
            if pending is None:
                self._claim(key)
            self._groups[key[0]].records[place] = record
            self._count += 1
            self._grow(_size_bytes(record))
            newest_revision = record.revision
        else:
            assert group is not None, "it has the position"
            revision, newest_revision = record.revision, current.revision
            if revision > newest_revision:
                group.records[place] = record
                self._grow(len(record.note) - len(current.note))
                newest_revision = revision
        if pending is not None:
            self._drop_until(key, pending, newest_revision)

    def withdraw(self, record: pb.OffsetRecord) -> None:
        """Discard a prepared record whose write was refused.

        Earlier prepared records remain, because their writes are independent.
        """
        key = (record.group, record.topic_id, record.partition)
        pending = self._pending.get(key, ())
        kept = [other for other in pending if other is not record]
        if kept:
            self._pending[key] = kept
        elif pending:
            self._forget_pending_of(key)

    def forget_pending(self) -> None:
        """Discard all prepared records; the caller ensures that all of them that were written are applied."""
        for key in list(self._pending):
            self._forget_pending_of(key)

    def get(self, key: _Key) -> pb.OffsetRecord | None:
        """Return the durable position of a key; None if no position is stored."""
        name, topic_id, partition = key
        group = self._groups.get(name)
        return None if group is None else group.records.get((topic_id, partition))

    def of_group(self, name: str, after: Place | None = None) -> Iterator[pb.OffsetRecord]:
        """Yield the durable positions of a group by topic id and partition, starting after `after` if given."""
        group = self._groups.get(name)
        if group is None:
            return
        at = 0 if after is None else bisect_right(group.places, after)
        while at < len(group.places):
            record = group.records.get(group.places[at])
            if record is not None:
                yield record
            at += 1

    def names(self) -> Collection[str]:
        """Return the names of the groups with positions, durable or pending."""
        return self._groups.keys()

    def count_of(self, name: str) -> int:
        """Return the number of durable positions of a group."""
        group = self._groups.get(name)
        return 0 if group is None else len(group.records)

    def is_committing(self, name: str) -> bool:
        """Return whether commits of a group are pending or have an unknown outcome."""
        group = self._groups.get(name)
        return group is not None and any(OffsetKey(name, *place) in self._pending for place in group.places)

    def last_commit_us(self, name: str) -> int:
        """Return the newest commit time of a group, in µs since 1970; 0 if it has no durable positions."""
        group = self._groups.get(name)
        records = () if group is None else group.records.values()
        return max((record.commit_timestamp_us for record in records), default=0)

    def forget_group(self, name: str) -> None:
        """Drop a group with all its positions, including pending ones."""
        group = self._groups.pop(name, None)
        if group is None:
            return
        self._totals.groups -= 1
        for place in group.places:
            record = group.records.get(place)
            if record is not None:
                self._count -= 1
                self._grow(-_size_bytes(record))
            self._pending.pop(OffsetKey(name, *place), None)
        for topic_id in {place[0] for place in group.places}:
            groups = self._of_topic[topic_id]
            groups.discard(name)
            if not groups:
                del self._of_topic[topic_id]

    def forget_topic(self, topic_id: bytes) -> None:
        """Drop the positions of a deleted topic, including pending ones."""
        for name in self._of_topic.pop(topic_id, ()):
            group = self._groups[name]
            first = bisect_left(group.places, (topic_id, 0))
            last = first
            while last < len(group.places) and group.places[last][0] == topic_id:
                place = group.places[last]
                record = group.records.pop(place, None)
                if record is not None:
                    self._count -= 1
                    self._grow(-_size_bytes(record))
                self._pending.pop(OffsetKey(name, *place), None)
                last += 1
            del group.places[first:last]
            if not group.places:
                self._drop(name)

    def forget_all(self) -> None:
        """Drop all positions, pending ones included."""
        for name in list(self._groups):
            self.forget_group(name)

    def records(self) -> Iterator[pb.OffsetRecord]:
        """Yield all durable positions, for a snapshot."""
        for group in self._groups.values():
            yield from group.records.values()

    def _drop_until(self, key: _Key, pending: list[pb.OffsetRecord], revision: int) -> None:
        """Forget the prepared records of a key up to a durable revision."""
        count = 0
        for record in pending:
            if record.revision > revision:
                break
            count += 1
        if count == len(pending):
            del self._pending[key]
        else:
            del pending[:count]

    def _forget_pending_of(self, key: _Key) -> None:
        """Discard the prepared records of a key, and remove the key if it has no durable position."""
        del self._pending[key]
        if self.get(key) is None:
            self._give_up(key)

    def _check_new(self, key: OffsetKey) -> None:
        """Refuse a new position beyond a limit."""
        bounds = self._bounds
        group = self._groups.get(key.group)
        if group is None and self._totals.groups >= bounds.groups:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"cannot store a position of group {key.group!r}: there are {self._totals.groups} groups, the "
                "maximum of groups_max; use an existing group, delete unused ones, or raise groups_max on every node",
            )
        if group is not None and len(group.places) >= bounds.positions:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"group {key.group!r} has {len(group.places)} positions, the maximum of group_positions_max; read "
                "fewer partitions with it, or raise that setting on every node",
            )
        self._check_memory()

    def _check_memory(self) -> None:
        bounds = self._bounds
        if self._totals.size_bytes + POSITION_BYTES * len(self._pending) >= bounds.size_bytes:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the positions of all groups use the maximum of positions_bytes ({bounds.size_bytes} bytes), so "
                "neither a new position nor a longer note of a commit can be stored; delete unused groups or topics, "
                "or raise that setting on every node",
            )

    def _claim(self, key: _Key) -> None:
        """Add a key for its first position."""
        name, topic_id, partition = key
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
            self._totals.groups += 1
        place = (topic_id, partition)
        if not group.places or group.places[-1] < place:
            group.places.append(place)
        else:
            insort(group.places, place)
        groups = self._of_topic.get(topic_id)
        if groups is None:
            groups = self._of_topic[topic_id] = set()
        groups.add(name)

    def _give_up(self, key: _Key) -> None:
        """Remove a key that never had a durable position."""
        name, topic_id, partition = key
        group = self._groups[name]
        del group.places[bisect_left(group.places, (topic_id, partition))]
        at = bisect_left(group.places, (topic_id, 0))
        if at == len(group.places) or group.places[at][0] != topic_id:
            groups = self._of_topic[topic_id]
            groups.discard(name)
            if not groups:
                del self._of_topic[topic_id]
        if not group.places:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._groups[name]
        self._totals.groups -= 1

    def _grow(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._totals.size_bytes += size_bytes


def _size_bytes(record: pb.OffsetRecord) -> int:
    return POSITION_BYTES + len(record.note)


def _repeat(newest: pb.OffsetRecord, record: pb.OffsetRecord) -> None:
    """Let a record store the position of another one, at its own time."""
    record.next_offset, record.note, record.epoch = newest.next_offset, newest.note, newest.epoch
    if newest.HasField("record_epoch"):
        record.record_epoch = newest.record_epoch
    else:
        record.ClearField("record_epoch")
