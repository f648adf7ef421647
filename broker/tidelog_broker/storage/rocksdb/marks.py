"""The sync marks of the stores: one file beside the database, with a slot of 32 bytes for each store.

The mark of a store is the offset below which its records were synced. It is written after each sync of the WAL, so it
is never ahead of the disk, and it is not in the WAL, so damage of the WAL does not take it along. A store has a mark on
the disk before it has a row in the database, so a store without a mark has lost it: it is unknown where its records
ended. Later writes of a mark reach the disk within `SYNC_PERIOD_S` (a process that is killed loses none), and at once
before records are truncated, so that a mark is never above a decided end. A slot lies in one sector of the disk, so a
power cut leaves its old or its new contents.

| at | size | field |
| --- | --- | --- |
| 0 | 8 | store id |
| 8 | 8 | synced offset |
| 16 | 12 | reserved, zero |
| 28 | 4 | CRC32C of the bytes before |
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.io.filesystem import File

SLOT_BYTES: Final = 32
SYNC_PERIOD_S: Final = 1.0
_SLOT: Final = struct.Struct("<QQ12x")
_CRC: Final = struct.Struct("<I")

assert _SLOT.size + _CRC.size == SLOT_BYTES


class SyncMarks:
    """The file of the sync marks. Thread-safe.

    Args:
        offer: runs a function in the background, or returns False; None: there is no background thread.
    """

    def __init__(self, file: File, offer: Callable[[Callable[[], None]], bool] | None) -> None:
        self._file = file
        self._offer = offer
        self._lock = threading.Lock()
        self._synced_s = time.monotonic()
        self._used: set[int] = set()
        self._stores: dict[int, int] = {}
        """The offsets found in the file when it was opened, by store."""
        self._read()

    def _read(self) -> None:
        data = self._file.pread(self._file.size(), 0)
        for at in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
            slot = data[at : at + SLOT_BYTES]
            if crc32c(slot[: _SLOT.size]) == _CRC.unpack_from(slot, _SLOT.size)[0]:
                store, offset = _SLOT.unpack_from(slot)
                self._stores[store] = offset

    def found(self, store: int) -> int | None:
        """Return the newest mark of a store in this process, or at its start; None if it is lost."""
        return self._stores.get(store)

    @property
    def newest_store(self) -> int:
        """The highest id of a store that has a slot, also of one that the database has lost; 0 without any."""
        return max(self._stores, default=0)

    def use(self, slot: int) -> None:
        """Record that a store has a slot."""
        with self._lock:
            self._used.add(slot)

    def free_slot(self) -> int:
        """Take an unused slot for a new store."""
        with self._lock:
            slot = next(number for number in range(len(self._used) + 1) if number not in self._used)
            self._used.add(slot)
            return slot

    def release(self, store: int, slot: int) -> None:
        """Let another store use the slot of a deleted one."""
        with self._lock:
            self._used.discard(slot)
            self._stores.pop(store, None)

    def write(self, store: int, slot: int, offset: int) -> None:
        """Write the mark of a store; it becomes durable in the background.

        Raises:
            OSError: the disk failed.
        """
        head = _SLOT.pack(store, offset)
        self._file.pwritev([head + _CRC.pack(crc32c(head))], slot * SLOT_BYTES)
        self._stores[store] = offset
        now_s = time.monotonic()
        if self._offer is not None and now_s - self._synced_s >= SYNC_PERIOD_S:
            self._synced_s = now_s
            self._offer(self._sync_in_background)

    def write_durably(self, store: int, slot: int, offset: int) -> None:
        """Write the mark of a store and return when it is on the disk.

        Raises:
            OSError: the disk failed.
        """
        self.write(store, slot, offset)
        self._file.datasync()

    def sync(self) -> None:
        """Make all marks durable.

        Raises:
            OSError: the disk failed.
        """
        self._file.datasync()

    def _sync_in_background(self) -> None:
        try:
            self._file.datasync()
        except (OSError, ValueError):  # The next durable write reports a failing disk; a closed file has no marks left.
            self._synced_s = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
