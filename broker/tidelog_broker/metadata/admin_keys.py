"""Administrators' API keys in a file of the node. They are independent of records, so no rule can lock them out."""

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
FILE_IDENTITY_PREFIX: Final = "file/"
"""Prefix of a session's identity for these keys; the key's id follows."""


class AdminKeys:
    """Provides the administrators' keys in a file, and reloads the file when it changes.

    Args:
        path: path of the file; None for no keys.

    Raises:
        SettingsError: see `read_admin_keys`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._secrets = Followed(lambda: _secrets_of(path), SettingsError, log)

    def secret_of(self, key_id: str) -> str | None:
        """Return the secret of a key; None if the file has no key with this id."""
        return self._secrets.value.get(key_id)

    def has_ended(self, identity: str) -> bool:
        """Return whether an identity is one of these keys and its key is no longer in the file."""
        return (
            identity.startswith(FILE_IDENTITY_PREFIX)
            and identity.removeprefix(FILE_IDENTITY_PREFIX) not in self._secrets.value
        )

    def look(self) -> bool:
        """Reload the file and return whether the keys have changed. Blocks briefly: call it on a worker thread.

        If the file is invalid, the last valid keys stay in use, so that an editing mistake does not lock out
        administrators.
        """
        if not self._secrets.look():
            return False
        log.info("loaded %d administrators' keys from %s", len(self._secrets.value), self._path)
        return True


def _secrets_of(path: Path | None) -> dict[str, str]:
    return {key.key_id: key.secret for key in read_admin_keys(path)}


def read_admin_keys(path: Path | None) -> list[Key]:
    """Return the keys of a file, one per line; none without a file. Lines that begin with # are comments.

    Raises:
        SettingsError: the file cannot be read, is readable by others, has no key, or a line is not a key.
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
                raise SettingsError(f"admin_key_file {path}, line {number}: {error.message}") from error
    if not keys:
        raise SettingsError(f"admin_key_file {path} contains no API key; create one with: tidelog key new --out FILE")
    return keys
