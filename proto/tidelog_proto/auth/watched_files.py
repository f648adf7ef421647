"""Reading of small files named by settings (certificates, keys, secrets, tokens), and reloading when they change."""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from tidelog_proto.auth.secret_permissions import permission_fault

T = TypeVar("T")

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class NamedFileError(Exception):
    """A file cannot be used. The text contains its path and the remedy."""


def read_named(path: Path, what: str, bytes_max: int, *, is_secret: bool = False, is_owners: bool = False) -> bytes:
    """Return a file's content.

    Args:
        what: names the content in messages.
        is_secret: refuse a file that every user may read or change.
        is_owners: refuse a file that other users than the owner may access.

    Raises:
        NamedFileError: the file is unreadable, not a regular file, too large, or accessible to others.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            complaint = permission_fault(file.fileno(), path, what) if is_secret else ""
            content = file.read(bytes_max + 1) if stat.S_ISREG(mode) else None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NamedFileError(f"cannot read {what} in {path}: {why}") from error
    if content is None:
        raise NamedFileError(f"cannot read {what} in {path}: it is not a regular file")
    if is_owners and mode & _OTHERS:
        raise NamedFileError(
            f"other users may access {what} in {path} (mode {stat.S_IMODE(mode):03o}): "
            f"chmod 600 {shlex.quote(str(path))}"
        )
    if complaint:
        raise NamedFileError(complaint)
    if len(content) > bytes_max:
        raise NamedFileError(
            f"{what} in {path} has more than {bytes_max} bytes; check that the path names the right file"
        )
    return content


def _at_once(path: str, flags: int) -> int:
    """Open a file without blocking, because opening a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class Followed(Generic[T]):
    """The parsed content of files, which `look` reloads.

    Args:
        read: reads and parses the files. While it raises `refusal`, the last value stays in use, and each new fault is
            logged once.
        refusal: the exception that `read` raises for invalid files.
        log: the logger for faults.

    Attributes:
        value: the last valid content.

    Raises:
        Exception: the error of the first call of `read`.
    """

    def __init__(self, read: Callable[[], T], refusal: type[Exception], log: logging.Logger) -> None:
        self.value = read()
        self._read = read
        self._refusal = refusal
        self._log = log
        self._problem = ""

    def look(self) -> bool:
        """Read the files again; return whether the content changed. Blocks briefly: call it on a worker thread."""
        try:
            content = self._read()
        except self._refusal as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.error("%s; the last valid content stays in use", error)
            return False
        self._problem = ""
        if content == self.value:
            return False
        self.value = content
        return True
