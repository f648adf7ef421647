"""Permission checks of secret files: the owner and a group may have access, other users may not.

Group access is needed in containers, whose user is rarely the file's owner. Files that an orchestrator mounts into a
container are accepted although their mode is world-readable (444 for Docker secrets, 644 for Kubernetes): such a file
belongs to root and is on a read-only file system or below /run/secrets, so the process cannot change its mode, and only
the container's own processes see it.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import Final

MOUNTED_BELOW: Final = Path("/run/secrets")


def permission_fault(descriptor: int, path: Path, what: str) -> str:
    """Return why the permissions of an open secret file are refused; "" if they are accepted.

    Args:
        path: the path by which the file was opened.
        what: names the content in the message, such as "the API key".
    """
    return _permission_fault(os.fstat(descriptor), os.fstatvfs(descriptor), path, what)


def file_permission_fault(path: Path, what: str) -> str:
    """Return why the permissions of a secret file are refused; "" if they are accepted or cannot be read.

    Args:
        what: names the content in the message.
    """
    try:
        return _permission_fault(path.stat(), os.statvfs(path), path, what)
    except (OSError, ValueError):
        return ""


def _permission_fault(status: os.stat_result, place: os.statvfs_result, path: Path, what: str) -> str:
    is_read_only = bool(place.f_flag & os.ST_RDONLY)
    if not is_accessible_to_all_users(status.st_mode, status.st_uid, path.resolve(), is_read_only=is_read_only):
        return ""
    verb = "read" if status.st_mode & stat.S_IROTH else "change"
    return (
        f"every user of this machine may {verb} {what} in {path} (mode {stat.S_IMODE(status.st_mode):03o}): "
        f"chmod 600 {shlex.quote(str(path))}"
    )


def is_accessible_to_all_users(mode: int, owner: int, path: Path, *, is_read_only: bool) -> bool:
    """Return whether every user of the machine may read or change a file, and the file is refused for that.

    A file of root that is mounted read-only, or below `MOUNTED_BELOW`, may be readable, as secrets of containers are.

    Args:
        mode: the file's mode with its type; only regular files are checked, not pipes and terminals.
        owner: user id of the owner.
        path: the file's path without symbolic links.
        is_read_only: whether the file system is mounted read-only.
    """
    if not stat.S_ISREG(mode) or not mode & (stat.S_IROTH | stat.S_IWOTH):
        return False
    is_mounted = owner == 0 and (is_read_only or path.is_relative_to(MOUNTED_BELOW))
    return not (is_mounted and not mode & stat.S_IWOTH)
