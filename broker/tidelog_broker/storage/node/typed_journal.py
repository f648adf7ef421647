"""A journal whose entries are messages of one kind, and what they add up to.

Each entry is about something, its key. By its kind it replaces what the journal has of that key, follows it, or ends
it: then the key is gone. What is replaced or ended is dead, and so is the end itself. What is live comes back key by
key, each key's in the order in which it was appended, and is never re-encoded. Once more is dead than live, compaction
leaves the dead out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog_broker.storage.io.errors import DamagedError, DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.journal import Journal
from tidelog_proto.limits import MIB

COMPACT_AFTER_BYTES: Final = MIB
"""Below this a journal is not worth compacting."""


E = TypeVar("E", bound=Message)


@dataclass(frozen=True, slots=True)
class JournalKind(Generic[E]):
    """What the entries of a kind of journal are, and how each bears on those before it.

    Attributes:
        magic: of the file, four bytes.
        parse: makes an entry of its bytes; raises DecodeError.
        key: what an entry is about.
        is_end: whether an entry ends its key.
        is_sequel: whether an entry follows what there is of its key; otherwise it replaces that.
        fault: says why an entry cannot follow the newest one of its key (None: there is none); empty when it can.
    """

    magic: bytes
    parse: Callable[[bytes], E]
    key: Callable[[E], Hashable]
    is_end: Callable[[E], bool]
    is_sequel: bool
    fault: Callable[[E, E | None], str]


class TypedJournal(Generic[E]):
    """An open journal of one kind; used by one thread at a time. Made by `open`."""

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
                raise DamagedError(f"{journal.path}: an entry does not decode: {error}") from error
            if fault := kind.fault(entry, self._newest(kind.key(entry))):
                raise DamagedError(f"{journal.path}: {fault}")
            self._take(entry, payload)

    @staticmethod
    def make(fs: FileSystem, path: Path, kind: JournalKind[E]) -> None:
        """Make an empty one, with the data directory; raises as `Journal.make`."""
        Journal.make(fs, path, kind.magic)

    @classmethod
    def open(cls, fs: FileSystem, path: Path, kind: JournalKind[E]) -> TypedJournal[E]:
        """Open the journal.

        Raises:
            DamagedError: it is damaged or missing, or an entry cannot follow those before it; the node must not start
                on a part of it, as a lost promise has no default.
            StorageFailedError: as `Journal.open`.
        """
        journal, payloads = Journal.open(fs, path, kind.magic)
        try:
            return cls(kind, journal, payloads)
        except BaseException:
            journal.close()
            raise

    def load(self) -> list[E]:
        """Return what is live, each key's entries in their order."""
        return [self.kind.parse(payload) for payloads in self._live.values() for payload in payloads]

    def append(self, entries: Sequence[E]) -> None:
        """Add entries; they are durable when this returns.

        Raises:
            DiskFullError: no space, not even what was kept for this; nothing has changed.
            StorageFailedError: the disk failed; the outcome is unknown until the next open.
        """
        # Within the group, too, each entry is held against the one before it.
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
            # The old file goes on with the space it keeps; compaction is tried again with the next entry.
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
