"""A small disk for one node: a tmpfs in the run's own mount namespace, filled by a file next to the node's data."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Final

_CHUNK: Final = bytes(64 * 1024)


class SmallDisk:
    """A file system of `size_mib` at `path`."""

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        mount = ("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path))
        subprocess.run(mount, check=True, capture_output=True)

    def fill(self) -> None:
        """Take all room that is left."""
        with self._ballast.open("ab", buffering=0) as file:
            chunk = _CHUNK
            while chunk:
                try:
                    file.write(chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """The room that is left."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize
