"""Replay of the commit log: the tails of all stores from the bytes of its files. No I/O.

A batch that does not continue its store's tail ends that tail until a later record says where the store ends; the other
stores are not affected. Marks distinguish damage from torn writes: a tail that ends below its
`marked_offset` has lost synced records; any other broken tail ends in a torn write. A tail that is longer than a mark
says, or that has another batch for an offset that it has, was cut by a record that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.commit_log.records import (
    RECORD_HEADER_BYTES,
    Boundary,
    FoundRecord,
    Kind,
    is_batch,
    payload_of,
    record_bytes,
    records_in,
    unpack_boundary,
    unpack_mark,
    unpack_state,
)
from tidelog_broker.storage.commit_log.tail import UNKNOWN_DIGEST, Tail
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_proto.batch.header import BatchHeader, Buffer, digest_after, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES


class BadRange(NamedTuple):
    """Bytes of a file without a valid record.

    Attributes:
        at: where they begin in the file.
        size_bytes: how many they are.
    """

    at: int
    size_bytes: int


class FileReplay(NamedTuple):
    """The result of the replay of a file.

    Attributes:
        end: where the last valid record of the file ends.
        bad: the ranges before `end` without a valid record.
    """

    end: int
    bad: list[BadRange]


class Replay:
    """The state of all stores after the records that were replayed.

    Attributes:
        tails: by the id of the store.
        forgotten: ids of stores that have no records in the log any more.
        synced: everything before this position is known to have been on the disk.
    """

    def __init__(self, tails: Iterable[Tail] = (), *, synced: int = 0) -> None:
        self.tails = {tail.store: tail for tail in tails}
        self.forgotten: set[int] = set()
        self.synced = synced

    def file(self, data: Buffer, start: int, *, nonce: int, base: int) -> FileReplay:
        """Replay the records of a file.

        Args:
            data: the contents of the file.
            start: where to begin in the file: at a record.
            base: the position of the file's first byte.
        """
        end, bad = start, list[BadRange]()
        for found in records_in(data, start, nonce=nonce, base=base):
            if found.kind == 0 or not self._replay(data, found, base + found.at):
                bad.append(BadRange(found.at, found.size_bytes))
            else:
                end = found.at + found.size_bytes
        return FileReplay(end, [one for one in bad if one.at < end])

    def finish(self) -> list[Tail]:
        """Drop copies that have not ended; return the tails that end in a torn write, which must be recorded."""
        for tail in list(self.tails.values()):
            tail.copy = None
            tail.is_damaged = tail.is_doubtful or tail.marked_offset > tail.end.offset
            if tail.is_broken and not tail.is_damaged and tail.end.digest == UNKNOWN_DIGEST:
                del self.tails[tail.store]  # Nothing is known of it but the beginning of a copy.
        torn = [tail for tail in self.tails.values() if tail.is_broken and not tail.is_damaged]
        for tail in torn:
            tail.is_broken = False
        return torn

    def lose_range(self) -> None:
        """Note that synced bytes of the log are missing here: any store may have had records in them.

        A store is sound nevertheless if a later record continues it or says where it ends.
        """
        for tail in self.tails.values():
            tail.is_doubtful = True

    def _replay(self, data: Buffer, found: FoundRecord, position: int) -> bool:
        """Replay a record; return False if its payload is damaged."""
        payload = payload_of(data, found.at, found.length)
        if is_batch(found.kind):
            return self._batch(found, payload, position)
        match found.kind:
            case Kind.MARK:
                self._mark(payload)
            case Kind.FORGET:
                self.tails.pop(found.store, None)
                self.forgotten.add(found.store)
            case Kind.STATE:
                start = unpack_state(payload)
                tail = self._tail(found.store, start, position)
                tail.start = start
                tail.restart(Boundary(start.offset, start.digest), position)
            case Kind.COPY_BEGIN:
                start = unpack_state(payload)
                tail = self._tail(found.store, start, position, is_empty=True)
                tail.start = start
                tail.copy = Tail(found.store, start, position)
            case Kind.CUT:
                start = unpack_state(payload)
                self._tail(found.store, start, position).cut(Boundary(start.offset, start.digest), position)
            case Kind.COPY_END:
                self._end_copy(found.store, unpack_boundary(payload), position)
            case _:
                pass
        return True

    def _mark(self, payload: Buffer) -> None:
        mark = unpack_mark(payload)
        self.synced = max(self.synced, mark.synced)
        for store, end in zip(mark.stores, mark.ends, strict=True):
            if store not in self.forgotten:
                tail = self._tail(store, EpochStart(bytes(16), 0, 0, 0, UNKNOWN_DIGEST), 0, is_empty=True)
                tail.marked_offset = max(tail.marked_offset, end)
                if not tail.is_broken and tail.end_below(mark.synced) > end:
                    tail.diverge(end)
                elif not tail.is_broken and tail.end.offset == end:
                    tail.is_doubtful = False

    def _tail(self, store: int, start: EpochStart, position: int, *, is_empty: bool = False) -> Tail:
        """Return the tail of a store.

        A store of which nothing but a mark or the beginning of a copy is known begins with the next record that says
        where: the records before are in files that are deleted, because the store does not need them.

        Args:
            is_empty: whether the record does not say where the tail begins.
        """
        tail = self.tails.get(store)
        if tail is None or (tail.is_unknown and not is_empty):
            marked_offset = tail.marked_offset if tail is not None else 0
            tail = self.tails[store] = Tail(store, start, position)
            tail.is_broken, tail.marked_offset = is_empty, marked_offset
        return tail

    def _batch(self, found: FoundRecord, batch: memoryview, position: int) -> bool:
        tail = self.tails.get(found.store)
        try:
            header = unpack_header(batch, typed=True)
        except ProtocolError:
            return self.bad_batch(found)
        if header.length != found.length or crc32c(batch[HEADER_BYTES:]) != header.body_crc:
            return self.bad_batch(found)
        if found.kind == Kind.BATCH and (tail is None or tail.is_unknown):
            if found.store in self.forgotten:
                return True
            start = EpochStart(bytes(16), 0, header.epoch, header.base_offset, UNKNOWN_DIGEST)
            tail = self._tail(found.store, start, position)
        extended = tail.copy if found.kind == Kind.COPIED and tail is not None else tail
        if extended is not None and not extended.is_broken:
            _extend(extended, header, batch, position)
        return True

    def bad_batch(self, found: FoundRecord) -> bool:
        """End the tail, or the copy, that a damaged batch belongs to, and only this one; return False."""
        tail = self.tails.get(found.store)
        if found.kind == Kind.COPIED:
            if tail is not None:
                tail.copy = None
        elif tail is not None:
            tail.is_broken = True
        return False

    def _end_copy(self, store: int, end: Boundary, position: int) -> None:
        tail = self.tails.get(store)
        if tail is None or tail.copy is None:
            return
        copy, tail.copy = tail.copy, None
        if not copy.is_broken and copy.end == end:
            tail.replace(copy.entries, end, position)


def continues(header: BatchHeader, batch: Buffer, end: Boundary) -> bool:
    """Return whether a batch begins at a boundary, with the digest that follows from it if that is known."""
    if header.base_offset != end.offset:
        return False
    return end.digest == UNKNOWN_DIGEST or header.digest == digest_after(batch, 0, end.digest)


def _extend(tail: Tail, header: BatchHeader, batch: memoryview, position: int) -> None:
    if header.base_offset < tail.end.offset and header.epoch == tail.start.epoch:
        # A cut is durable before another batch follows it, so a torn write cannot be the reason.
        tail.diverge(header.base_offset)
        return
    if not continues(header, batch, tail.end) or header.epoch != tail.start.epoch:
        tail.is_broken = True
        return
    tail.entries.append(header.base_offset, position + RECORD_HEADER_BYTES, header.length, header.max_timestamp_us)
    tail.end = Boundary(header.end_offset, header.digest)
    tail.is_doubtful = False
    tail.size_bytes += record_bytes(header.length)
