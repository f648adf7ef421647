"""The administrators' keys in a file of the node: no record makes them, so no rule and no revocation locks them out."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from tidelog_proto.api_key import Key, parse_key
from tidelog_proto.errors import ProtocolError
from tidelog_proto.settings import SettingsError

log = logging.getLogger(__name__)

KEY_FILE_BYTES_MAX: Final = 64 * 1024
IN_FILE: Final = "file/"
"""What the identity of a session begins with that one of these keys has made; the key's id comes behind it."""


class AdminKeys:
    """The keys of a file, and what becomes of them when the file changes.

    Args:
        path: of the file; None: there are none.

    Raises:
        SettingsError: as `read_admin_keys`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._secrets = _secrets_of(path)
        self._problem = ""

    def secret_of(self, key_id: str) -> str | None:
        """Return the secret of a key; None if there is none of this id."""
        return self._secrets.get(key_id)

    def has_ended(self, identity: str) -> bool:
        """Whether a session's identity is one of these keys, and stands in the file no more."""
        return identity.startswith(IN_FILE) and identity.removeprefix(IN_FILE) not in self._secrets

    def look(self) -> bool:
        """Read the file again and return whether other keys stand in it. Blocks; for a worker.

        While the file is not as it must be, the keys that were read last hold: to lock everybody out takes more than a
        slip of an editor.
        """
        try:
            found = _secrets_of(self._path)
        except SettingsError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("%s; the keys that were read before hold", error)  # noqa: TRY400 - a line says it all
            return False
        self._problem = ""
        if found == self._secrets:
            return False
        log.info("%d administrators' keys are read from %s", len(found), self._path)
        self._secrets = found
        return True


def _secrets_of(path: Path | None) -> dict[str, str]:
    return {key.key_id: key.secret for key in read_admin_keys(path)}


def read_admin_keys(path: Path | None) -> list[Key]:
    """Return the keys of a file, one a line; of none without a file. Lines that begin with # say nothing.

    Raises:
        SettingsError: the file cannot be read, others may read it, or a line is no key.
    """
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"cannot read admin_key_file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise SettingsError(f"other users may read admin_key_file (mode {mode:03o}): chmod 600 {path}")
    if len(text) > KEY_FILE_BYTES_MAX:
        raise SettingsError(f"admin_key_file {path} is larger than {KEY_FILE_BYTES_MAX} bytes")
    keys: list[Key] = []
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                keys.append(parse_key(line.strip()))
            except ProtocolError as error:
                raise SettingsError(f"line {number} of admin_key_file {path}: {error.message}") from error
    if not keys:
        raise SettingsError(f"admin_key_file {path} holds no API key: `tidelog key new --out FILE` makes one")
    return keys
