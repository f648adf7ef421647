"""A journal whose entries are protobuf messages of one kind, indexed by key.

Each entry has a key. Depending on the kind of journal, an entry replaces the previous entries of its key or is added to
them; an entry that ends its key removes them. Replaced and removed entries are dead, and so is the entry that ends a
key. Live entries are returned key by key, those of a key in the order of their appends, and are never re-encoded. When
dead entries take more bytes than live ones, compaction drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog_broker.storage.io.errors import DamagedError, DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.journal import JOURNAL_REMEDY, Journal
from tidelog_proto.limits import MIB

COMPACT_AFTER_BYTES: Final = MIB
"""Smallest size at which a journal is compacted."""


E = TypeVar("E", bound=Message)


@dataclass(frozen=True, slots=True)
class JournalKind(Generic[E]):
    """The format of the entries in a kind of journal, and the effect of an entry on previous entries of its key.

    Attributes:
        magic: the magic of the file, four bytes.
        parse: parses an entry; raises DecodeError.
        key: returns the key of an entry.
        is_end: whether an entry removes all entries of its key, itself included.
        is_sequel: whether an entry is added to the previous ones of its key, instead of replacing them.
        fault: returns why an entry cannot follow the newest entry of its key, with the remedy; empty if it can. The
            second argument is that newest entry; None if the key has none.
    """

    magic: bytes
    parse: Callable[[bytes], E]
    key: Callable[[E], Hashable]
    is_end: Callable[[E], bool]
    is_sequel: bool
    fault: Callable[[E, E | None], str]


class TypedJournal(Generic[E]):
    """An open journal of one kind; used by one thread at a time. Created by `open`."""

    def __init__(self, kind: JournalKind[E], journal: Journal, payloads: Sequence[bytes]) -> None:
        self.kind = kind
        self._journal = journal
        self._live: dict[Hashable, list[bytes]] = {}
        self._live_bytes = 0
        self._dead_bytes = 0
        for payload in payloads:
            try:
                entry = kind.parse(payload)
            except DecodeError as error:
                raise DamagedError(f"{journal.path}: an entry cannot be decoded: {error}; {JOURNAL_REMEDY}") from error
            if fault := kind.fault(entry, self._newest(kind.key(entry))):
                raise DamagedError(f"{journal.path}: {fault}")
            self._take(entry, payload)

    @staticmethod
    def make(fs: FileSystem, path: Path, kind: JournalKind[E]) -> None:
        """Create an empty journal in a data directory without this journal; raises as `Journal.make`."""
        Journal.make(fs, path, kind.magic)

    @classmethod
    def open(cls, fs: FileSystem, path: Path, kind: JournalKind[E]) -> TypedJournal[E]:
        """Open the journal.

        Raises:
            DamagedError: the journal is damaged or missing, or an entry cannot follow the previous ones. The node must
                not start with only a part of the entries: a vote that it has forgotten would be given twice.
            StorageFailedError: as `Journal.open`.
        """
        journal, payloads = Journal.open(fs, path, kind.magic)
        try:
            return cls(kind, journal, payloads)
        except BaseException:
            journal.close()
            raise

    def load(self) -> list[E]:
        """Return the live entries, those of a key in the order of their appends."""
        return [self.kind.parse(payload) for payloads in self._live.values() for payload in payloads]

    def append(self, entries: Sequence[E]) -> None:
        """Append entries; they are durable when this returns.

        Raises:
            DiskFullError: no space, and the reserve is used up; nothing has changed.
            StorageFailedError: the disk failed; the outcome is unknown until the next open.
        """
        # An entry is also checked against earlier entries of the same group.
        group: dict[Hashable, E] = {}
        for entry in entries:
            key = self.kind.key(entry)
            fault = self.kind.fault(entry, group[key] if key in group else self._newest(key))
            assert not fault, fault
            group[key] = entry
        payloads = [entry.SerializeToString() for entry in entries]
        self._journal.append(payloads)
        for entry, payload in zip(entries, payloads, strict=True):
            self._take(entry, payload)
        if self._journal.size_bytes > COMPACT_AFTER_BYTES and self._dead_bytes > self._live_bytes:
            self._compact()

    def has_reserve(self) -> bool:
        """See `Journal.has_reserve`."""
        return self._journal.has_reserve()

    def mark(self) -> None:
        """See `Journal.mark`."""
        self._journal.mark()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _compact(self) -> None:
        try:
            self._journal.compact([payload for payloads in self._live.values() for payload in payloads])
        except DiskFullError:
            # The old file stays in use; the next append tries to compact again.
            return
        self._dead_bytes = 0

    def _newest(self, key: Hashable) -> E | None:
        payloads = self._live.get(key)
        return self.kind.parse(payloads[-1]) if payloads else None

    def _take(self, entry: E, payload: bytes) -> None:
        key = self.kind.key(entry)
        is_end = self.kind.is_end(entry)
        if is_end or not self.kind.is_sequel:
            dropped_bytes = sum(map(len, self._live.pop(key, [])))
            self._live_bytes -= dropped_bytes
            self._dead_bytes += dropped_bytes
        if is_end:
            self._dead_bytes += len(payload)
        else:
            self._live.setdefault(key, []).append(payload)
            self._live_bytes += len(payload)
