"""The administrators' keys in a file of the node: no record makes them, so no rule and no revocation locks them out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidelog_proto.auth.api_key import Key, parse_key
from tidelog_proto.auth.watched_files import Followed, NamedFileError, read_named
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.settings import SettingsError

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
        self._secrets = Followed(lambda: _secrets_of(path), SettingsError, log)

    def secret_of(self, key_id: str) -> str | None:
        """Return the secret of a key; None if there is none of this id."""
        return self._secrets.value.get(key_id)

    def has_ended(self, identity: str) -> bool:
        """Whether a session's identity is one of these keys, and stands in the file no more."""
        return identity.startswith(IN_FILE) and identity.removeprefix(IN_FILE) not in self._secrets.value

    def look(self) -> bool:
        """Read the file again and return whether other keys stand in it. Blocks; for a worker.

        While the file is not as it must be, the keys that were read last hold: to lock everybody out takes more than a
        slip of an editor.
        """
        if not self._secrets.look():
            return False
        log.info("%d administrators' keys are read from %s", len(self._secrets.value), self._path)
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
        text = read_named(path, "the keys of admin_key_file", KEY_FILE_BYTES_MAX, is_owners=True)
    except NamedFileError as error:
        raise SettingsError(str(error)) from error
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
