"""Who may read the file of a secret: its owner and a group; where everybody may, it is refused.

A group is how a container's user gets to read what another has. One kind of file is taken although its mode lets
everybody read it: what an orchestrator puts into a container (Docker's secrets have mode 444, Kubernetes' 644). It
belongs to root and lies where nothing can be written, or below /run/secrets, so whoever reads it cannot mend its mode;
nobody but the container's own processes sees it.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import Final

MOUNTED_BELOW: Final = Path("/run/secrets")


def complaint_about(descriptor: int, path: Path, what: str) -> str:
    """Return why a secret is not taken from an open file; "" where nothing is wrong with it.

    Args:
        descriptor: of the file.
        path: by which it was opened.
        what: is in it, for the message: "the API key".
    """
    return _complaint(os.fstat(descriptor), os.fstatvfs(descriptor), path, what)


def complaint_about_file(path: Path, what: str) -> str:
    """Return the same of a file that is not opened; "" also where there is none: who needs it says so.

    Args:
        path: of the file.
        what: is in it.
    """
    try:
        return _complaint(path.stat(), os.statvfs(path), path, what)
    except (OSError, ValueError):
        return ""


def _complaint(status: os.stat_result, place: os.statvfs_result, path: Path, what: str) -> str:
    is_read_only = bool(place.f_flag & os.ST_RDONLY)
    if not is_open_to_all(status.st_mode, status.st_uid, path.resolve(), is_read_only=is_read_only):
        return ""
    return (
        f"every user of this machine may use {what} in {path} (mode {stat.S_IMODE(status.st_mode):03o}): "
        f"chmod 600 {shlex.quote(str(path))}"
    )


def is_open_to_all(mode: int, owner: int, path: Path, *, is_read_only: bool) -> bool:
    """Say whether a file is one that everybody may read or change.

    Args:
        mode: the file's, with its type; pipes and terminals are no files that others find.
        owner: the number of the user to whom it belongs.
        path: without symbolic links.
        is_read_only: whether it lies where nothing can be written.
    """
    if not stat.S_ISREG(mode) or not mode & (stat.S_IROTH | stat.S_IWOTH):
        return False
    is_mounted = owner == 0 and (is_read_only or path.is_relative_to(MOUNTED_BELOW))
    return not (is_mounted and not mode & stat.S_IWOTH)
