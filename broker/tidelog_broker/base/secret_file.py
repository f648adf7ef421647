"""The file of a cluster's secret, or of two of them while one is replaced; it is followed while the node runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidelog_broker.core.cluster_secrets import SECRETS_MAX, ClusterSecrets
from tidelog_broker.core.membership.datagram_auth import SECRET_BYTES_MIN
from tidelog_proto.auth.watched_files import Followed, NamedFileError, read_named
from tidelog_proto.process.settings import SettingsError

log = logging.getLogger(__name__)

_FILE_BYTES_MAX: Final = 4096


class SecretFile:
    """What becomes of secrets when their file changes.

    Args:
        path: of the file.
        secrets: what was read from it, and is kept right.
    """

    def __init__(self, path: Path, secrets: ClusterSecrets) -> None:
        self._secrets = secrets
        self._followed = Followed(lambda: _read(path), SettingsError, log)

    def look(self) -> tuple[bytes, ...] | None:
        """Read the file again and return other secrets, if they are others. Blocks for a moment.

        While the file is not as it must be, those that were read last hold.
        """
        self._followed.look()
        found = self._followed.value
        return None if found == tuple(self._secrets) else found


def read_secrets(path: Path | None) -> ClusterSecrets:
    """Return the secrets in a file, one a line.

    Raises:
        SettingsError: there is none, there are too many, one is too short, or everybody may read or change the file.
    """
    if path is None:
        raise SettingsError("a node of a cluster needs the cluster's secret: give --secret-file")
    return ClusterSecrets(*_read(path))


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        content = read_named(path, "the cluster's secret", _FILE_BYTES_MAX, is_secret=True).strip()
    except NamedFileError as error:
        raise SettingsError(f"{error}; the file belongs to the user that runs the node") from error
    # A secret of any bytes may have a line's end among them: only text has lines.
    is_text = content.isascii() and content.decode("ascii", "replace").replace("\n", "").replace("\r", "").isprintable()
    found = tuple(line.strip() for line in content.splitlines() if line.strip()) if is_text else (content,)
    if len(found) > SECRETS_MAX:
        raise SettingsError(
            f"the secret file {path} has {len(found)} lines: it holds one secret, or while that is replaced two, one "
            "a line"
        )
    for secret in found or (b"",):
        if len(secret) < SECRET_BYTES_MIN:
            raise SettingsError(f"the secret in {path} has {len(secret)} bytes; it needs {SECRET_BYTES_MIN} or more")
    return found
