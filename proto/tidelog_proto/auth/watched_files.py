"""Small files that settings name: certificates, keys, secrets, tokens; they are read at once, and followed."""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from tidelog_proto.auth.secret_permissions import complaint_about

T = TypeVar("T")

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class NamedFileError(Exception):
    """A file is not as it must be; the text says which, and what to do."""


def read_named(path: Path, what: str, bytes_max: int, *, is_secret: bool = False, is_owners: bool = False) -> bytes:
    """Return a file's content.

    Args:
        path: of the file.
        what: is in it, for messages.
        bytes_max: of it.
        is_secret: refuse it where everybody may read or change it.
        is_owners: refuse it where anybody but its owner may.

    Raises:
        NamedFileError: it cannot be read, is no regular file (one that can be read again), is too large, or is open to
            others.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            complaint = complaint_about(file.fileno(), path, what) if is_secret else ""
            content = file.read(bytes_max + 1) if stat.S_ISREG(mode) else None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NamedFileError(f"cannot read {what} in {path}: {why}") from error
    if content is None:
        raise NamedFileError(f"cannot read {what} in {path}: it is no regular file")
    if is_owners and mode & _OTHERS:
        raise NamedFileError(
            f"other users may read {what} in {path} (mode {stat.S_IMODE(mode):03o}): chmod 600 {shlex.quote(str(path))}"
        )
    if complaint:
        raise NamedFileError(complaint)
    if len(content) > bytes_max:
        raise NamedFileError(f"{what} in {path} has more than {bytes_max} bytes")
    return content


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for whoever writes into it: of a pipe nobody might."""
    return os.open(path, flags | os.O_NONBLOCK)


class Followed(Generic[T]):
    """What files say, and say anew when they change.

    Args:
        read: reads them; while it raises `refusal`, what was read last holds, and the log says so once.
        refusal: what it raises where they are not as they must be.
        log: takes the line.

    Attributes:
        value: what was read last.

    Raises:
        Exception: as `read`, the first time.
    """

    def __init__(self, read: Callable[[], T], refusal: type[Exception], log: logging.Logger) -> None:
        self.value = read()
        self._read = read
        self._refusal = refusal
        self._log = log
        self._problem = ""

    def look(self) -> bool:
        """Read the files again, and return whether they say anything else. Blocks for a moment; for a worker."""
        try:
            found = self._read()
        except self._refusal as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.error("%s; what was read before holds", error)
            return False
        self._problem = ""
        if found == self.value:
            return False
        self.value = found
        return True
