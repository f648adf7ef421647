"""HMAC-signed data that a node gives to a client and that any node of the cluster can verify.

Format: HMAC-SHA256, followed by the data. The key is derived from the cluster secret and cluster id under a label for
each use, so that signed data is valid only for its use and its cluster. With several secrets the first one signs and
all verify, which allows rotation without downtime.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

_MAC_BYTES: Final = 32


class DataSigner:
    """Signs and verifies data of one use.

    Args:
        label: identifies the use; data that was signed under another label is refused.
        secret: process-local secret, used until `use` sets the cluster secrets.
    """

    def __init__(self, label: bytes, secret: bytes) -> None:
        self._label = label
        self._secrets: Iterable[bytes] = (secret,)
        self._cluster_id = b""
        self._made_of: tuple[bytes, ...] = ()
        self._keys_made: list[bytes] = []

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Use the secrets of a cluster, which may be rotated later: the first one signs, all verify."""
        self._secrets, self._cluster_id = secrets, cluster_id
        self._made_of = ()

    def sign(self, text: bytes) -> bytes:
        """Return signed data."""
        return hmac.digest(self._keys()[0], text, "sha256") + text

    def verify(self, signed: bytes) -> bytes | None:
        """Return the data; None if it is empty, or no node of this cluster has signed it for this use."""
        mac, text = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        is_ours = any(hmac.compare_digest(mac, hmac.digest(key, text, "sha256")) for key in self._keys())
        return text if is_ours and text else None

    def _keys(self) -> list[bytes]:
        secrets = tuple(self._secrets)
        if secrets != self._made_of:
            assert secrets
            assert all(secrets), "a signature with an empty secret could be forged"
            self._keys_made = [hmac.digest(secret, self._label + self._cluster_id, "sha256") for secret in secrets]
            self._made_of = secrets
        return self._keys_made
