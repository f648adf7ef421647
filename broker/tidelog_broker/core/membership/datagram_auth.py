"""How gossip datagrams are authenticated: HMAC-SHA256 with the cluster's secret over the whole payload.

`u8 version | 32 bytes tag | payload`. Whoever has the secret is a node of the cluster; the payload itself says which
one, of which cluster, and numbers its datagrams, so the tag covers that too. Gossip is authentic, not secret: it
names hosts and zones. Rejected: a key for each pair of nodes (n² keys for hints), and DTLS (connections, and nothing
in the standard library).
"""

from __future__ import annotations

import hmac
from typing import Final

from tidelog_broker.core.membership.gossip_messages import AUTH_BYTES, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX

SECRET_BYTES_MIN: Final = 16
_VERSION: Final = b"\x01"
_CONTEXT: Final = b"tidelog gossip 1"
"""Goes into the tag: one secret may serve several protocols."""


class DatagramAuth:
    """Signs and verifies with one secret.

    Raises:
        ValueError: the secret is shorter than SECRET_BYTES_MIN.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the cluster secret has {len(secret)} bytes; it needs {SECRET_BYTES_MIN} or more")
        self._secret = secret

    def sign(self, payload: bytes) -> bytes:
        """Return the datagram, at most DATAGRAM_BYTES_MAX bytes."""
        assert len(payload) <= PAYLOAD_BYTES_MAX
        return _VERSION + self._tag(payload) + payload

    def verify(self, datagram: bytes) -> bytes | None:
        """Return the payload, or None if it is too long, of another version, or not signed with this secret."""
        if not AUTH_BYTES <= len(datagram) <= DATAGRAM_BYTES_MAX or datagram[:1] != _VERSION:
            return None
        payload = datagram[AUTH_BYTES:]
        return payload if hmac.compare_digest(datagram[1:AUTH_BYTES], self._tag(payload)) else None

    def _tag(self, payload: bytes) -> bytes:
        return hmac.digest(self._secret, _CONTEXT + payload, "sha256")
