"""Secrets of API keys: the stored hash, and a cache of verified secrets.

A secret has 256 random bits and cannot be guessed; the slow hash (scrypt, 4 MiB, some milliseconds) protects it if
`__meta` leaks. A secret that was verified once is recognised by a fast hash that is keyed with a process-local key.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from tidelog_proto.auth.api_key import Key

SALT_BYTES: Final = 16

_COST: Final = 1 << 12
_BLOCKS: Final = 8


def slow_hash(secret: str, salt: bytes) -> bytes:
    """Return the stored hash of a secret: 32 bytes. It takes milliseconds; call it on a worker thread."""
    return hashlib.scrypt(secret.encode(), salt=salt, n=_COST, r=_BLOCKS, p=1, dklen=32)


class VerifiedSecrets:
    """Cache of verified secrets by key id, as keyed hashes.

    Args:
        random_key: 32 random bytes, known only to this process.
        entries_max: maximum number of entries; the one that was added first is evicted.
    """

    def __init__(self, random_key: bytes, *, entries_max: int = 10_000) -> None:
        self._random_key = random_key
        self._entries_max = entries_max
        self._keyed_hashes: dict[str, bytes] = {}

    def knows(self, key: Key, kept_hash: bytes) -> bool:
        """Return whether this secret was verified against this stored hash."""
        known = self._keyed_hashes.get(key.key_id)
        return known is not None and hmac.compare_digest(known, self._keyed_hash(key, kept_hash))

    def learn(self, key: Key, kept_hash: bytes) -> None:
        """Record that a secret was verified."""
        self._keyed_hashes.pop(key.key_id, None)
        self._keyed_hashes[key.key_id] = self._keyed_hash(key, kept_hash)
        if len(self._keyed_hashes) > self._entries_max:
            del self._keyed_hashes[next(iter(self._keyed_hashes))]

    def _keyed_hash(self, key: Key, kept_hash: bytes) -> bytes:
        return hmac.digest(self._random_key, kept_hash + key.secret.encode(), "sha256")
