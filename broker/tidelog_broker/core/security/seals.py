"""What a node signs for itself and for the other nodes of its cluster, and gives to somebody else to keep.

A seal is HMAC-SHA256 over a text, and the text behind it. The key is derived from the cluster's secret and id, under a
label for each use, so that nothing that is sealed for one counts for another, and none of one cluster in another. With
several secrets the first seals and all verify: a secret is changed without a stop.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

_MAC_BYTES: Final = 32


class Seals:
    """See the module.

    Args:
        label: of the use.
        secret: of this process, for as long as there is none of a cluster.
    """

    def __init__(self, label: bytes, secret: bytes) -> None:
        self._label = label
        self._secrets: Iterable[bytes] = (secret,)
        self._cluster_id = b""
        self._made_of: tuple[bytes, ...] = ()
        self._made: list[bytes] = []

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Go by the secrets of a cluster from now on, as they are at each time: the first seals, all verify."""
        self._secrets, self._cluster_id = secrets, cluster_id
        self._made_of = ()

    def sealed(self, text: bytes) -> bytes:
        """Return a text under a seal."""
        return hmac.digest(self._keys()[0], text, "sha256") + text

    def opened(self, sealed: bytes) -> bytes | None:
        """Return the text; None: no node of this cluster has sealed it for this use."""
        mac, text = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        is_ours = any(hmac.compare_digest(mac, hmac.digest(key, text, "sha256")) for key in self._keys())
        return text if is_ours and text else None

    def _keys(self) -> list[bytes]:
        secrets = tuple(self._secrets)
        if secrets != self._made_of:
            assert secrets
            assert all(secrets), "with an empty secret everybody could sign"
            self._made = [hmac.digest(secret, self._label + self._cluster_id, "sha256") for secret in secrets]
            self._made_of = secrets
        return self._made
