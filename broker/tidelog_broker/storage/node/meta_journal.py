"""DATA/meta/journal: the decided chains of epochs, as they were decided.

Entries are kept in the order in which they came and their bytes are never re-encoded. What the entries of a
partition mean, and whether they continue each other, is the chain's business; the journal keeps them, and forgets a
partition when it is told to. Entries of forgotten partitions are dropped by compaction, at open and when they have
become most of the file.
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

MAGIC: Final = b"TLMJ"
COMPACT_AFTER_BYTES: Final = MIB
"""Below this a journal is not worth compacting."""

PartitionKey = tuple[bytes, int]


class MetaJournal:
    """The chains of every partition of this node; used by one thread at a time."""

    def __init__(self, journal: Journal, payloads: Sequence[bytes]) -> None:
        self._journal = journal
        self._live: dict[PartitionKey, list[bytes]] = {}
        self._live_bytes = 0
        self._dead_bytes = 0
        for payload in payloads:
            self._take(self._parse(payload), payload)

    @staticmethod
    def make(fs: FileSystem, path: Path) -> None:
        """Make an empty one, with the data directory; raises as `Journal.make`."""
        Journal.make(fs, path, MAGIC)

    @classmethod
    def open(cls, fs: FileSystem, path: Path) -> MetaJournal:
        """Open the journal.

        Raises:
            DamagedError: it is damaged or missing; the node must not start on a part of it.
            StorageFailedError: as `Journal.open`.
        """
        journal, payloads = Journal.open(fs, path, MAGIC)
        try:
            return cls(journal, payloads)
        except BaseException:
            journal.close()
            raise

    def load(self) -> dict[PartitionKey, list[pb.ChainEntry]]:
        """Return the chain of every partition that is not forgotten: its genesis, then its decisions in order."""
        return {key: [pb.ChainEntry.FromString(raw) for raw in entries] for key, entries in self._live.items()}

    def entries(self) -> list[pb.ChainEntry]:
        """Return the entries of `load` in one list, each partition's in order."""
        return [entry for chain in self.load().values() for entry in chain]

    def append(self, entries: Sequence[pb.ChainEntry]) -> None:
        """Add entries; they are durable when this returns.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed; the outcome is unknown until the next open.
        """
        payloads = [entry.SerializeToString() for entry in entries]
        self._journal.append(payloads)
        for entry, payload in zip(entries, payloads, strict=True):
            self._take(entry, payload)
        if self._journal.size_bytes > COMPACT_AFTER_BYTES and self._dead_bytes > self._live_bytes:
            self._compact()

    def mark(self) -> None:
        """See `Journal.mark`."""
        self._journal.mark()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _compact(self) -> None:
        try:
            self._journal.compact([payload for chain in self._live.values() for payload in chain])
        except DiskFullError:
            # The old file goes on; compaction is tried again with the next entry.
            return
        self._dead_bytes = 0

    def _take(self, entry: pb.ChainEntry, payload: bytes) -> None:
        key = (entry.topic_id, entry.partition)
        if entry.WhichOneof("entry") == "forgotten":
            dropped_bytes = sum(map(len, self._live.pop(key, [])))
            self._live_bytes -= dropped_bytes
            self._dead_bytes += dropped_bytes + len(payload)
        else:
            self._live.setdefault(key, []).append(payload)
            self._live_bytes += len(payload)

    def _parse(self, payload: bytes) -> pb.ChainEntry:
        try:
            entry = pb.ChainEntry.FromString(payload)
        except DecodeError as error:
            raise DamagedError(f"{self._journal.path}: an entry does not decode: {error}") from error
        if entry.WhichOneof("entry") is None:
            raise DamagedError(f"{self._journal.path}: an entry of a kind that this version does not know")
        return entry
