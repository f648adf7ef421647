"""Errors of the storage.

    ProtocolError
    └── StorageError
        ├── DiskFullError        no space; nothing was written, nothing has changed
        │   ├── NoDescriptorError    nothing has changed, because no more files can be opened
        │   ├── MemoryFullError      nothing has changed, because the memory of an engine is used up
    │   ├── EngineBusyError      nothing has changed, because an engine stores records more slowly than they arrive
        │   └── EngineMissingError   nothing has changed, because the engine is not installed
        ├── StorageFailedError   the disk failed: after a failed write or sync the log takes no more writes
        ├── DamagedError         synced bytes have changed
        ├── LimboError           an append to a damaged log
        ├── DivergedError        this copy differs from the decided log
        └── NotHeldError         the records are missing in this node's copy; another replica has them
    LayoutError                  invalid bytes in a file; does not leave the storage
    NodeDirError                 the data directory cannot be used; the message is for the operator
    ├── NodeDirLockedError       another process has it open
    └── OldCopyError             other nodes have found it to be an older copy of a data directory

Storage errors are protocol errors, so that the server can send them to clients without a translation table.
"""

from __future__ import annotations

import errno
from pathlib import Path

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.file_descriptors import REMEDY, is_out_of_descriptors


class StorageError(ProtocolError):
    """A fault of the disk, of the data on it, or of a storage engine."""


class DiskFullError(StorageError):
    """No space (DISK_FULL). Nothing was written; the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.DISK_FULL, message)


class NoDescriptorError(DiskFullError):
    """No more files can be opened (OVERLOADED). Nothing was written; the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = pb.OVERLOADED


class MemoryFullError(DiskFullError):
    """The memory of an engine is used up (OVERLOADED). Nothing was stored; the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = pb.OVERLOADED


class EngineBusyError(DiskFullError):
    """An engine stores records more slowly than they arrive (OVERLOADED).

    Nothing was stored; the same request may succeed later.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = pb.OVERLOADED


class StorageFailedError(StorageError):
    """The disk failed, or the log is closed or sealed (STORAGE_FAILED).

    A failed sync is never retried: the kernel may have dropped the pages, and the next sync would report success.
    """

    def __init__(self, message: str) -> None:
        super().__init__(pb.STORAGE_FAILED, message)


class DamagedError(StorageError):
    """Synced bytes have changed or are missing (LIMBO)."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)

    @classmethod
    def at(cls, path: Path, position: int, reason: str) -> DamagedError:
        """Return the error for damage at a byte of a file."""
        return cls(f"{path} is damaged at byte {position}: {reason}; repair it from another copy or a backup")


class LimboError(StorageError):
    """The log is damaged and takes no appends until it is repaired (LIMBO); its valid part can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)


class DivergedError(StorageError):
    """The copy on this node differs from the decided log (LIMBO); it must be set aside and fetched again."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)


class NotHeldError(StorageError):
    """The copy on this node lacks the records (yet); another replica has them (NOT_OWNER)."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.NOT_OWNER, message)


class EngineMissingError(DiskFullError):
    """The engine of an epoch is not installed on this node, or cannot be used (LIMBO). Nothing has changed.

    A DiskFullError, because the consequences are the same: nothing is stored, and other partitions are not affected.
    """

    def __init__(
        self,
        engine: str,
        reason: str,
        *,
        what: str = "cannot be used",
        remedy: str = "install its package on this node and restart the node",
    ) -> None:
        super().__init__(f"engine {engine} {what}: {reason}; {remedy}")
        self.code = pb.LIMBO
        self.engine = engine


class LayoutError(Exception):
    """Invalid bytes in a file; the caller adds path and position."""


class NodeDirError(Exception):
    """The data directory cannot be used; the message has the reason and the remedy."""


class OldCopyError(NodeDirError):
    """The data directory is an older copy: it lacks promises and records that the node has made and stored since."""


class NodeDirLockedError(NodeDirError):
    """Another process has the data directory open."""


def is_shortage(error: OSError) -> bool:
    """Return whether an error means that space, quota or descriptors are exhausted: the call has changed nothing."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT} or is_out_of_descriptors(error)


def space_or_failure(what: str, error: OSError) -> DiskFullError | StorageFailedError:
    """Convert an OSError into a storage error whose message begins with `what` and ends with the remedy."""
    if is_out_of_descriptors(error):
        return NoDescriptorError(f"{what}: {error}; {REMEDY}")
    if is_shortage(error):
        return DiskFullError(f"{what}: {error}; free disk space")
    return StorageFailedError(f"{what}: {error}; check the disk")


def unreadable(what: str, error: OSError) -> NoDescriptorError | StorageFailedError:
    """Convert an OSError of opening or reading a file; without free descriptors, the message does not name the disk."""
    if is_out_of_descriptors(error):
        return NoDescriptorError(f"{what}: {error}; {REMEDY}")
    return StorageFailedError(f"{what}: {error}; check the disk")
