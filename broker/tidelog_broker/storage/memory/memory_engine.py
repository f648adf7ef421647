"""The memory engine: epochs whose records are only in memory.

A restart of the process is like the loss of a disk: every epoch of this engine is empty then, and `EpochStore.is_lost`
reports it. The records of a replicated partition are fetched from the other replicas again (`replication.replica_log`).

Each epoch has a directory with one file, `memory`: the identity and the start of the epoch, and a random number by
which this engine finds the contents as long as the process lives, even after the directory was renamed. So the contents
stay when the store is closed and opened again, and are released when the directory is removed (`forget`).

Memory is bounded for the node and for each topic. When a bound is reached, `ensure_space` refuses a group, as on a full
disk, but with OVERLOADED.
"""

from __future__ import annotations

import secrets
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker
from tidelog_broker.storage.engine.store import Call, Capabilities, Damage, Engine, EpochStart, EpochStore, Volume
from tidelog_broker.storage.io.errors import DamagedError, MemoryFullError, unreadable
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.memory.contents import Contents
from tidelog_broker.storage.memory.file_copy import FILE_NAME
from tidelog_broker.storage.memory.memory_store import MEMORY, MemoryStore
from tidelog_proto.limits import KIB

_MAGIC: Final = b"TLME"
_FILE: Final = struct.Struct("<4sIQ16sIQQI")
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 1
_RESERVED_BYTES: Final = 64 * KIB
"""Memory that a store reserves at once, if that much is left, so that most groups need not take the engine's lock."""
_CALLS: Final[frozenset[Call]] = frozenset({"reserve", "append", "sync", "read", "find", "delete_oldest"})


class MemoryBudget:
    """The memory of a node for records, divided among topics. Thread-safe.

    Args:
        bytes_max: maximum bytes of the records of all topics.
        topic_bytes_max: maximum bytes of the records of one topic, so that one topic cannot take all memory.
    """

    def __init__(self, *, bytes_max: int, topic_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._topic_bytes_max = topic_bytes_max
        self._lock = threading.Lock()
        self._used: Counter[bytes] = Counter()
        """Reserved bytes of each topic, used or not."""
        self.used_bytes = 0

    def reserve(self, topic_id: bytes, needed_bytes: int) -> int:
        """Reserve memory for a topic; see `Bytes.reserve`."""
        with self._lock:
            left = min(self.bytes_max - self.used_bytes, self._topic_bytes_max - self._used[topic_id])
            taken = max(needed_bytes, min(_RESERVED_BYTES, left))
            if needed_bytes > left:
                raise MemoryFullError(
                    f"{needed_bytes:,} bytes do not fit into the memory engine: this node has reserved "
                    f"{self.used_bytes:,} of {self.bytes_max:,} bytes (memory_engine_bytes), and for "
                    f"topic id {topic_id.hex()} {self._used[topic_id]:,} of {self._topic_bytes_max:,}; send again when "
                    "retention has deleted old records, lower retention_bytes of topics in memory, or raise "
                    "memory_engine_bytes"
                )
            self._used[topic_id] += taken
            self.used_bytes += taken
            return taken

    def release(self, topic_id: bytes, size_bytes: int) -> None:
        """Release memory of a topic; see `Bytes.release`."""
        with self._lock:
            self._used[topic_id] -= size_bytes
            self.used_bytes -= size_bytes
            if not self._used[topic_id]:
                del self._used[topic_id]


class MemoryEngine(Engine):
    """The memory engine of a node."""

    name = MEMORY

    def __init__(self, fs: FileSystem, budget: MemoryBudget) -> None:
        self.capabilities = Capabilities(
            durable=False,
            survives_restart=False,
            indexes=frozenset({"key", "tag"}),
            bytes_max=budget.bytes_max,
            never_wait=_CALLS,
            write_behind=True,
        )
        self._fs = fs
        self.budget = budget
        self._contents: dict[int, Contents] = {}
        self._lock = threading.Lock()

    # --- stores ----------------------------------------------------------------------------------------

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        """Write the file of a new store."""
        del segment_bytes
        head = _FILE.pack(
            _MAGIC,
            _VERSION,
            secrets.randbits(64),
            start.topic_id,
            start.partition,
            start.epoch,
            start.offset,
            start.digest,
        )
        with closing(self._fs.open(directory / FILE_NAME, create=True)) as file:
            file.pwritev([head, _CRC.pack(crc32c(head))], 0)
            file.datasync()

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore | None:
        """Open a store, with its contents if this process has them; otherwise it is empty, and lost unless `is_new`.

        Returns:
            The store; None if the contents are lost and the epoch has ended with records, see `Engine.open`.

        Raises:
            DamagedError: the file of the store is missing or damaged.
            StorageFailedError: the disk cannot be read.
        """
        try:
            nonce, start = self._read(directory)
            is_marked = has_marker(self._fs, directory)
            if sealed_end_offset is not None and is_marked:
                remove_marker(self._fs, directory)
        except OSError as error:
            raise unreadable(f"{directory} cannot be opened", error) from error
        with self._lock:
            contents = self._contents.get(nonce)
        if contents is None:
            contents = Contents(start, directory)
            if not is_new:
                contents = self._recovered(directory, start, segment_bytes) or contents
                if sealed_end_offset not in {None, contents.end.offset}:
                    self.budget.release(start.topic_id, contents.size_bytes)
                    if sealed_end_offset != start.offset:
                        return None
                    contents = Contents(start, directory)
                contents.is_lost = sealed_end_offset is None
            with self._lock:
                self._contents[nonce] = contents
        contents.is_sealed = sealed_end_offset is not None
        contents.blocks[-1].is_growing = not contents.is_sealed
        contents.damage = _damage(directory, contents, sealed_end_offset, is_marked=is_marked)
        is_repairing = is_marked and sealed_end_offset is None
        return self._store(directory, contents, segment_bytes=segment_bytes, is_repairing=is_repairing)

    def _recovered(self, directory: Path, start: EpochStart, segment_bytes: int) -> Contents | None:
        """Return the contents that are left after a restart, for which memory is reserved; None if nothing is left."""
        del directory, start, segment_bytes
        return None

    def _store(self, directory: Path, contents: Contents, *, segment_bytes: int, is_repairing: bool) -> MemoryStore:
        return MemoryStore(
            self._fs, directory, contents, self.budget, segment_bytes=segment_bytes, is_repairing=is_repairing
        )

    def is_deleted(self, names: Sequence[str]) -> bool:
        """Return whether a directory that contains these file names is the remains of an interrupted deletion."""
        return FILE_NAME not in names

    def forget(self, directory: Path) -> None:
        """Release the contents of a store whose directory is about to be removed."""
        try:
            nonce, start = self._read(directory)
        except (DamagedError, OSError):
            return  # Without the file the contents cannot be found: they stay in memory until the process ends.
        with self._lock:
            contents = self._contents.pop(nonce, None)
        if contents is not None:
            self.budget.release(start.topic_id, contents.size_bytes)

    def _read(self, directory: Path) -> tuple[int, EpochStart]:
        path = directory / FILE_NAME
        if not self._fs.exists(path):
            raise DamagedError.at(path, 0, "the file is missing")
        with closing(self._fs.open_readonly(path)) as file:
            data = file.pread(_FILE.size + _CRC.size, 0)
        if len(data) < _FILE.size + _CRC.size:
            raise DamagedError.at(path, 0, f"the file has {len(data)} bytes, expected {_FILE.size + _CRC.size}")
        crc, found_crc = _CRC.unpack_from(data, _FILE.size)[0], crc32c(data[: _FILE.size])
        if crc != found_crc:
            raise DamagedError.at(path, 0, f"the file declares CRC32C {crc:#010x}, its bytes have {found_crc:#010x}")
        magic, version, nonce, *start = _FILE.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION):
            raise DamagedError.at(
                path, 0, f"the file has magic {magic!r} and version {version}, expected {_MAGIC!r} and {_VERSION}"
            )
        return nonce, EpochStart(*start)


def _damage(directory: Path, contents: Contents, sealed_end_offset: int | None, *, is_marked: bool) -> Damage | None:
    """Return why a store is in LIMBO when it is opened; None if it is not."""
    end_offset = contents.end.offset
    if sealed_end_offset is not None and sealed_end_offset != end_offset:
        reason = f"the epoch ends at offset {sealed_end_offset}, this copy at {end_offset}"
    elif is_marked and sealed_end_offset is None:
        reason = "the log was lost, and the missing records have not been fetched yet"
    else:
        return None
    return Damage(directory, 0, end_offset, sealed_end_offset or end_offset, reason)


def memory_engine(volume: Volume) -> Engine:
    """Return the memory engine of a node. One topic may take half of the engine's memory."""
    budget = MemoryBudget(bytes_max=volume.memory_bytes, topic_bytes_max=max(1, volume.memory_bytes // 2))
    return MemoryEngine(volume.fs, budget)
