from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tidelog_broker.storage.io.errors import (
    DamagedError,
    DiskFullError,
    DivergedError,
    LimboError,
    NotHeldError,
    StorageError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
)
from tidelog_proto import broker_pb2 as pb


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DiskFullError("x"), pb.DISK_FULL),
        (StorageFailedError("x"), pb.STORAGE_FAILED),
        (DamagedError("x"), pb.LIMBO),
        (LimboError("x"), pb.LIMBO),
        (DivergedError("x"), pb.LIMBO),
        (NotHeldError("x"), pb.NOT_OWNER),
    ],
)
def test_every_storage_error_has_its_protocol_code(error: StorageError, code: pb.ErrorCode) -> None:
    assert error.to_message().code == code
    assert error.to_message().message == "x"


def test_damage_names_file_and_byte() -> None:
    assert "/a/b.seg is damaged at byte 77: why" in DamagedError.at(Path("/a/b.seg"), 77, "why").message


def test_shortage_errors_are_recognised() -> None:
    assert is_shortage(OSError(errno.ENOSPC, ""))
    assert is_shortage(OSError(errno.EDQUOT, ""))
    assert not is_shortage(OSError(errno.EIO, ""))


def test_full_disk_and_failed_disk_are_distinguished() -> None:
    full = space_or_failure("the file cannot be made", OSError(errno.ENOSPC, "no space"))
    broken = space_or_failure("the file cannot be made", OSError(errno.EIO, "I/O error"))
    assert (type(full), type(broken)) == (DiskFullError, StorageFailedError)
    assert full.message == f"the file cannot be made: [Errno {errno.ENOSPC}] no space; free disk space"
    assert broken.message == f"the file cannot be made: [Errno {errno.EIO}] I/O error; check the disk"
