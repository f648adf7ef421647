"""Mutations of the commit log that partitions share. See `mutants`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.storage.commit_log import log_recovery, records, replay, shared_store, tidying
from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.commit_log.log_files import LogFiles
from tidelog_broker.storage.commit_log.records import Boundary, FoundRecord
from tidelog_broker.storage.commit_log.replay import FileReplay, Replay
from tidelog_broker.storage.commit_log.shared_store import SharedStore
from tidelog_broker.storage.commit_log.tail import Tail
from tidelog_broker.storage.commit_log.tail_batches import CheckedBatches, read_entries
from tidelog_broker.storage.commit_log.tidying import Tidying
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.active_segment import batch_fields
from tidelog_proto.batch.header import Buffer

Replacements = Sequence[tuple[object, str, object]]


def not_synced() -> Replacements:
    """A sync of the log writes nothing to the disk."""

    def sync(self: CommitLog) -> None:
        with self.lock:
            self.synced_position = self.position
            self._covered.update(self._touched)
            self._touched = {}

    return [(CommitLog, "_sync", sync)]


def joint_writes_with_followers() -> Replacements:
    """The owner does not wait for followers if it writes the batches of several partitions together."""
    original = OffsetAssigner.__init__

    def init(self: OffsetAssigner, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        self.is_sole = True
        self.ack_quorum = 1

    return [(OffsetAssigner, "__init__", init)]


def marks_before_the_sync() -> Replacements:
    """A mark names records that no sync has covered."""
    original = CommitLog.add_mark

    def add_mark(self: CommitLog, buffers: list[Buffer]) -> int:
        self._covered.update(self._touched)
        self._touched = {}
        return original(self, buffers)

    return [(CommitLog, "add_mark", add_mark)]


def not_rewritten() -> Replacements:
    """A start relies on what it reads after the last mark, without writing it again."""

    def make_durable(fs: FileSystem, one: Any, result: FileReplay, *, synced: int, size_bytes: int, nonce: int) -> int:
        del fs, synced, nonce
        base: int = one.base
        return base + max(result.end, size_bytes)

    return [(log_recovery, "_make_durable", make_durable)]


def torn_ends_not_recorded() -> Replacements:
    """A start that cuts tails at torn writes does not record where they end."""
    original = Replay.finish

    def finish(self: Replay) -> list[Tail]:
        original(self)
        return []

    return [(Replay, "finish", finish)]


def cut_not_recorded() -> Replacements:
    """A truncation is done in memory only."""

    def cut(self: CommitLog, tail: Tail, end: Boundary) -> None:
        with self.lock:
            tail.cut(end, self.position)

    return [(CommitLog, "cut", cut)]


def marks_not_heeded() -> Replacements:
    """A start takes damage of synced records for a torn write."""

    def mark(self: Replay, payload: Buffer) -> None:
        del self, payload

    return [(Replay, "_mark", mark)]


def bad_record_ends_all_tails() -> Replacements:
    """A bad batch ends the tails of all stores."""
    original = Replay.bad_batch

    def bad(self: Replay, found: FoundRecord) -> bool:
        for tail in self.tails.values():
            tail.is_broken = True
        return original(self, found)

    return [(Replay, "bad_batch", bad)]


def copies_without_an_end() -> Replacements:
    """A start uses a copy as far as it goes, although its end is missing."""
    original = Replay.finish

    def finish(self: Replay) -> list[Tail]:
        for tail in self.tails.values():
            if tail.copy is not None:
                tail.replace(tail.copy.entries, tail.copy.end, tail.copy.position)
        return original(self)

    return [(Replay, "finish", finish)]


def deleted_before_copies_are_synced() -> Replacements:
    """A file is deleted when its tails are copied, before the copies are durable."""

    def delete_unused(self: Tidying) -> None:
        held = self._log
        oldest = min((tail.oldest_position for tail in held.tails.values()), default=held.position)
        while len(files := held.files.all) > 1 and files[1].base <= oldest:
            held.delete_oldest()

    return [(Tidying, "delete_unused", delete_unused)]


def deleted_with_living_tails() -> Replacements:
    """The oldest file is deleted although a tail that was not copied has records in it."""

    def copy(self: Tidying, tail: Tail, below: int) -> bool:
        del self, below
        tail.position = max(tail.position, 1 << 62)
        return True

    return [
        (Tidying, "_copy", copy),
        (Tail, "oldest_position", property(lambda self: self.position)),
    ]


def emptied_before_segments_are_synced() -> Replacements:
    """A tail is emptied when its records are written to segments, which are not synced."""

    def write_out(self: SharedStore, *, is_partial: bool = False) -> None:
        del is_partial
        contents, tail = self._contents, self._contents.tail
        if not len(tail.entries):
            return
        checked = self._read_tail()
        segments = contents.segments or self._begin_segments(tail.entries.base)
        segments.ensure_space(sum(padded(len(batch)) for batch in checked.batches))
        segments.append(checked.batches)
        contents.segments = segments
        tail.restart(checked.end, tail.position)
        with suppress(DiskFullError):
            self._log.state(tail)
        self._log.sync()

    return [(SharedStore, "_write_out", write_out)]


def forgotten_before_it_is_moved() -> Replacements:
    """The log forgets a store whose epoch ends before the segments have its newest records."""
    original = SharedStore.seal

    def seal(self: SharedStore) -> None:
        if not self._contents.is_plain:
            self._log.forget(self._contents.tail.store)
        original(self)

    return [(SharedStore, "seal", seal)]


def segments_not_cut() -> Replacements:
    """A truncation below the tail cuts the log only."""

    def truncate(self: SharedStore, end_offset: int) -> None:
        segments = self._contents.segments
        if segments is None or self._contents.is_plain or end_offset >= segments.end_offset:
            original(self, end_offset)
            return
        digest = self.reader.digest_at(end_offset)
        assert digest is not None
        self._cut(Boundary(end_offset, digest))
        self._end_repair()

    original = SharedStore.truncate
    return [(SharedStore, "truncate", truncate)]


def moved_without_the_tail() -> Replacements:
    """The directory of an epoch that ends becomes one of the segment engine without the records in the log."""
    original = SharedStore.move_to_segments

    def move(self: SharedStore) -> None:
        if self._contents.segments is None:
            original(self)
        else:
            self._mark_moved()

    return [(shared_store.SharedStore, "move_to_segments", move)]


def divergence_not_seen() -> Replacements:
    """A tail that another record contradicts is not taken for damaged."""

    def diverge(self: Tail, offset: int) -> None:
        del offset
        self.is_broken = True

    return [(Tail, "diverge", diverge)]


def log_ends_at_a_bad_record() -> Replacements:
    """A start takes the first bad record of a file for its end."""
    original = records.records_in

    def records_in(data: Buffer, start: int, *, nonce: int, base: int) -> Iterator[FoundRecord]:
        for found in original(data, start, nonce=nonce, base=base):
            if found.kind == 0:
                return
            yield found

    return [(replay, "records_in", records_in)]


def unknown_tails_stay_broken() -> Replacements:
    """Records of a store are ignored if the log begins with a mark that names the store."""
    return [(Tail, "is_unknown", property(lambda self: False))]


def copies_not_checked() -> Replacements:
    """A tail is copied with whatever is read, and its store is not told."""

    def read_unchecked(files: LogFiles, tail: Tail) -> CheckedBatches:
        entries = tail.entries
        batches = read_entries(files, entries, 0, len(entries))[:-1]
        return CheckedBatches(batches, [batch_fields(one) for one in batches], tail.end, None)

    return [(tidying, "read_checked", read_unchecked)]


def snapshot_before_the_sync() -> Replacements:
    """A snapshot names records that are not durable yet."""
    original = Tidying.save_snapshot

    def save(self: Tidying) -> None:
        with patch.object(CommitLog, "sync", lambda self, position=None: None):
            original(self)

    return [(Tidying, "save_snapshot", save)]
