"""The file of a cluster's secret, or of two during a replacement, which is reloaded when it changes."""

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
    """Reloads secrets when their file changes.

    Args:
        path: the file.
        secrets: the secrets in use, with which those of the file are compared.
    """

    def __init__(self, path: Path, secrets: ClusterSecrets) -> None:
        self._secrets = secrets
        self._followed = Followed(lambda: _read(path), SettingsError, log)

    def look(self) -> tuple[bytes, ...] | None:
        """Reload the file; return its secrets if they differ from those in use, else None.

        Blocks briefly: call it on a worker thread. If the file is invalid, the last valid secrets stay in use.
        """
        self._followed.look()
        found = self._followed.value
        return None if found == tuple(self._secrets) else found


def read_secrets(path: Path | None) -> ClusterSecrets:
    """Return the secrets in a file, one a line.

    Raises:
        SettingsError: no file is given; or the file cannot be read, is accessible to all users, has no secret or too
            many, or has one that is too short.
    """
    if path is None:
        raise SettingsError(
            "a node of a cluster needs the cluster's secret; set --secret-file to the file that its nodes share"
        )
    return ClusterSecrets(*_read(path))


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        content = read_named(path, "the cluster's secret", _FILE_BYTES_MAX, is_secret=True).strip()
    except NamedFileError as error:
        raise SettingsError(
            f"{error}; --secret-file must be a file that the node can read and that is not open to all users"
        ) from error
    # A binary secret may contain line breaks, so only text is split into lines.
    is_text = content.isascii() and content.decode("ascii", "replace").replace("\n", "").replace("\r", "").isprintable()
    found = tuple(line.strip() for line in content.splitlines() if line.strip()) if is_text else (content,)
    if len(found) > SECRETS_MAX:
        raise SettingsError(
            f"the secret file {path} must have one secret, or two during a replacement, one a line; got {len(found)} "
            "lines"
        )
    for secret in found or (b"",):
        if len(secret) < SECRET_BYTES_MIN:
            raise SettingsError(
                f"the secret in {path} must have at least {SECRET_BYTES_MIN} bytes, got {len(secret)}; create one "
                "with: openssl rand -hex 32"
            )
    return found
