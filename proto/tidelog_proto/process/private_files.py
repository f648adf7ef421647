"""Log files that only their owner can read, because they contain topics, principals and addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

_FILE_MODE: Final = 0o600
PRIVATE_DIR_MODE: Final = 0o700
"""Mode of new directories for such files."""


def open_private_log(path: Path, *, append: bool) -> BinaryIO:
    """Open a log file for writing with mode 600; the mode of an existing file is changed.

    Args:
        path: the file, in an existing directory.
        append: append to an existing file; truncate it otherwise.

    Raises:
        OSError: the file cannot be opened, or belongs to another user.
    """
    return open(path, "ab" if append else "wb", opener=_private)  # `Path.open` has no `opener`


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, _FILE_MODE)
    try:
        os.fchmod(descriptor, _FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
