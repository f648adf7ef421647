"""Log files that only their owner may read: they name topics, principals and addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

_FILE_MODE: Final = 0o600
PRIVATE_DIR_MODE: Final = 0o700
"""Of a directory that is made for such files."""


def open_private_log(path: Path, *, append: bool) -> BinaryIO:
    """Open a file for writing that its owner alone may read; one that exists becomes so, if it is this user's.

    Args:
        path: of the file; its directory exists.
        append: whether what it has stays.

    Raises:
        OSError: it cannot be opened, or belongs to another user.
    """
    return open(path, "ab" if append else "wb", opener=_private)  # `Path.open` takes none


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, _FILE_MODE)
    try:
        os.fchmod(descriptor, _FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
