"""DATA/meta/fences: what this node has promised and accepted, per partition and epoch.

An entry replaces the one before it of the same partition and epoch, and never goes back: the promised ballot only
rises, and so does the accepted one, which never exceeds the promise. A dropped fence is gone from the state; its
decision stands in the metadata journal by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tidelog_broker.storage.io.errors import DamagedError, DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.journal import Journal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

MAGIC: Final = b"TLFJ"
COMPACT_AFTER_BYTES: Final = MIB

PartitionKey = tuple[bytes, int]
FenceKey = tuple[bytes, int, int]
"""Topic id, partition, epoch."""


class FenceJournal:
    """The fences of every partition of this node; used by one thread at a time."""

    def __init__(self, journal: Journal, payloads: Sequence[bytes]) -> None:
        self._journal = journal
        self._fences: dict[FenceKey, pb.FenceEntry] = {}
        self._live_bytes = 0
        for payload in payloads:
            entry = self._parse(payload)
            fault = self._regression(entry, self._fences)
            if fault:
                raise DamagedError(f"{journal.path}: {fault}")
            self._take(entry)

    @staticmethod
    def make(fs: FileSystem, path: Path) -> None:
        """Make an empty one, with the data directory; raises as `Journal.make`."""
        Journal.make(fs, path, MAGIC)

    @classmethod
    def open(cls, fs: FileSystem, path: Path) -> FenceJournal:
        """Open the journal.

        Raises:
            DamagedError: it is damaged or missing; a lost promise has no default.
            StorageFailedError: as `Journal.open`.
        """
        journal, payloads = Journal.open(fs, path, MAGIC)
        try:
            return cls(journal, payloads)
        except BaseException:
            journal.close()
            raise

    def load(self) -> dict[FenceKey, pb.FenceEntry]:
        """Return every fence that is not dropped."""
        return dict(self._fences)

    def get(self, key: PartitionKey, epoch: int) -> pb.FenceEntry | None:
        """Return the fence of a partition's epoch, None without one."""
        return self._fences.get((*key, epoch))

    def append(self, entries: Sequence[pb.FenceEntry]) -> None:
        """Replace fences; they are durable when this returns.

        Raises:
            DiskFullError: no space, not even the reserved one; nothing has changed.
            StorageFailedError: the disk failed; the outcome is unknown until the next open.
        """
        # Within the group, too, each entry is held against the one before it.
        group: dict[FenceKey, pb.FenceEntry] = {}
        for entry in entries:
            key = _key(entry)
            fault = self._regression(entry, group if key in group else self._fences)
            assert not fault, fault
            group[key] = entry
        self._journal.append([entry.SerializeToString() for entry in entries])
        for entry in entries:
            self._take(entry)
        if self._journal.size_bytes > max(COMPACT_AFTER_BYTES, 4 * self._live_bytes):
            self._compact()

    def mark(self) -> None:
        """See `Journal.mark`."""
        self._journal.mark()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _compact(self) -> None:
        try:
            self._journal.compact([entry.SerializeToString() for entry in self._fences.values()])
        except DiskFullError:
            # The old file goes on with its reserve; compaction is tried again with the next entry.
            return

    def _take(self, entry: pb.FenceEntry) -> None:
        key = _key(entry)
        old = self._fences.pop(key, None)
        self._live_bytes -= old.ByteSize() if old is not None else 0
        if not entry.dropped:
            kept = pb.FenceEntry()
            kept.CopyFrom(entry)
            self._fences[key] = kept
            self._live_bytes += kept.ByteSize()

    @staticmethod
    def _regression(entry: pb.FenceEntry, fences: dict[FenceKey, pb.FenceEntry]) -> str:
        """Return what an entry would take back; empty when it only goes forward."""
        old = fences.get(_key(entry))
        if entry.dropped:
            return ""
        where = f"partition {entry.partition}, epoch {entry.epoch}"
        if entry.HasField("accepted") and _order(entry.accepted) > _order(entry.promised):
            return f"{where}: a ballot accepted above the promise"
        if old is None or old.dropped:
            return ""
        if _order(entry.promised) < _order(old.promised):
            return f"{where}: the promise would go back"
        if _order(entry.accepted) < _order(old.accepted):
            return f"{where}: the accepted ballot would go back"
        if old.HasField("accepted") and entry.accepted == old.accepted and entry.accepted_value != old.accepted_value:
            return f"{where}: another value under the same ballot"
        if entry.deleting_below < old.deleting_below:
            return f"{where}: what is to be deleted would become less"
        if old.HasField("descriptor") and entry.descriptor != old.descriptor:
            return f"{where}: the epoch's descriptor would change"
        return ""

    def _parse(self, payload: bytes) -> pb.FenceEntry:
        try:
            return pb.FenceEntry.FromString(payload)
        except DecodeError as error:
            raise DamagedError(f"{self._journal.path}: an entry does not decode: {error}") from error


def _key(entry: pb.FenceEntry) -> FenceKey:
    return entry.topic_id, entry.partition, entry.epoch


def _order(ballot: pb.Ballot) -> tuple[int, str, int]:
    return ballot.round, ballot.node_id, ballot.incarnation
