"""What can go wrong with files, as errors that a caller can tell apart.

    ProtocolError
    └── StorageError
        ├── DiskFullError        no space; nothing was written, nothing has changed
        │   └── NoDescriptorError    the same, as no more files can be open
        ├── StorageFailedError   a write or a sync failed: this log takes nothing more, for good
        ├── DamagedError         bytes that were synced once are not what they were
        ├── LimboError           an append to a log that is damaged
        ├── DivergedError        what is here is not what was decided
        └── NotHeldError         not in this node's copy; another replica has it
    NodeDirError                 the data directory cannot be used as it is: for the person who starts the node
    ├── NodeDirLockedError       another process has it open
    └── OldCopyError             the cluster has found it to be an older copy of itself

These are protocol errors, so that the boundary of the node turns them into replies without a table
of its own.
"""

from __future__ import annotations

import errno
from pathlib import Path

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.file_descriptors import REMEDY, is_out_of_descriptors


class StorageError(ProtocolError):
    """A fault of the disk or of what lies on it."""


class DiskFullError(StorageError):
    """No space (DISK_FULL). Raised before anything was written; the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.DISK_FULL, message)


class NoDescriptorError(DiskFullError):
    """No more files can be open (OVERLOADED). Nothing was written, and the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = pb.OVERLOADED


class StorageFailedError(StorageError):
    """A write or sync failed (STORAGE_FAILED). Never retried: the kernel may have dropped the pages already."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.STORAGE_FAILED, message)


class DamagedError(StorageError):
    """Synced bytes have changed or are gone (LIMBO)."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)

    @classmethod
    def at(cls, path: Path, position: int, reason: str) -> DamagedError:
        """Return the error for damage at a byte of a file."""
        return cls(f"{path} is damaged at byte {position}: {reason}; repair it from another copy or a backup")


class LimboError(StorageError):
    """The log is damaged and takes no appends until it is repaired (LIMBO); what is good of it can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)


class DivergedError(StorageError):
    """The copy here has other content than was decided (LIMBO): set it aside and fetch it again."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.LIMBO, message)


class NotHeldError(StorageError):
    """The copy on this node does not have it (yet); another replica does (NOT_OWNER)."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.NOT_OWNER, message)


class NodeDirError(Exception):
    """The data directory cannot be used as it is; the message says why and what to do."""


class OldCopyError(NodeDirError):
    """The data directory is an older copy of the node's: what the node has promised and stored since is not in it."""


class NodeDirLockedError(NodeDirError):
    """Another process has the data directory open."""


def is_shortage(error: OSError) -> bool:
    """Whether an error means that there is no space, no quota or no descriptor left, and all is as it was."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT} or is_out_of_descriptors(error)


def space_or_failure(what: str, error: OSError) -> DiskFullError | StorageFailedError:
    """Return the storage's error for an operating system's."""
    if is_out_of_descriptors(error):
        return NoDescriptorError(f"{what}: {error}; {REMEDY}")
    return DiskFullError(f"{what}: {error}") if is_shortage(error) else StorageFailedError(f"{what}: {error}")


def unreadable(what: str, error: OSError) -> NoDescriptorError | StorageFailedError:
    """Return the error of a file that could not be opened or read; where descriptors ran out, the disk is not named."""
    if is_out_of_descriptors(error):
        return NoDescriptorError(f"{what}: {error}; {REMEDY}")
    return StorageFailedError(f"{what}: {error}; check the disk")
