"""Authentication of gossip datagrams: HMAC-SHA256 with the cluster secret over the whole payload.

Format: `u8 version | 32 bytes tag | payload`. The payload contains cluster id, sender and datagram counter, so the tag
covers them as well. Datagrams are authenticated but not encrypted: they contain hosts and zones. Rejected: a key for
each pair of nodes (n² keys for what are only hints), and DTLS (connection state, and not in the standard library).
"""

from __future__ import annotations

import hmac
from typing import Final

from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.membership.gossip_messages import AUTH_BYTES, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX

SECRET_BYTES_MIN: Final = 16
_VERSION: Final = b"\x01"
_CONTEXT: Final = b"tidelog gossip 1"
"""Domain separation: the same secret is used by several protocols."""


class DatagramAuth:
    """Signs with the first secret and verifies with any; `secrets` may be replaced at any time.

    Raises:
        ValueError: a secret is shorter than SECRET_BYTES_MIN.
    """

    def __init__(self, secrets: ClusterSecrets) -> None:
        for secret in secrets:
            if len(secret) < SECRET_BYTES_MIN:
                raise ValueError(f"a cluster secret must have at least {SECRET_BYTES_MIN} bytes, got {len(secret)}")
        self._secrets = secrets

    def sign(self, payload: bytes) -> bytes:
        """Return the datagram, at most DATAGRAM_BYTES_MAX bytes."""
        assert len(payload) <= PAYLOAD_BYTES_MAX
        return _VERSION + _tag(self._secrets.first, payload) + payload

    def verify(self, datagram: bytes) -> bytes | None:
        """Return the payload, or None if it is too long, of another version, or not signed with one of the secrets."""
        if not AUTH_BYTES <= len(datagram) <= DATAGRAM_BYTES_MAX or datagram[:1] != _VERSION:
            return None
        payload = datagram[AUTH_BYTES:]
        for secret in self._secrets:
            if hmac.compare_digest(datagram[1:AUTH_BYTES], _tag(secret, payload)):
                return payload
        return None


def _tag(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, _CONTEXT + payload, "sha256")
