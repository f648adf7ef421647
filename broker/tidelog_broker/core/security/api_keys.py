"""Secrets of API keys: what is kept of them, and who has shown a right one before.

A secret has 256 random bits, so nobody finds it by trying; the slow hash (scrypt, 4 MiB and some milliseconds) is for
the day on which `__meta` is read by somebody who should not. Whoever has shown a right secret once is recognised by a
fast keyed hash of it that only this process knows.
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
    """Return the hash that is kept of a secret: 32 bytes. It takes milliseconds; call it on a worker."""
    return hashlib.scrypt(secret.encode(), salt=salt, n=_COST, r=_BLOCKS, p=1, dklen=32)


class KnownSecrets:
    """Secrets that have been found right in this process, by the ids of their keys: of each a keyed hash.

    Args:
        random_key: 32 bytes that nobody else knows.
        entries_max: the oldest are forgotten beyond so many.
    """

    def __init__(self, random_key: bytes, *, entries_max: int = 10_000) -> None:
        self._random_key = random_key
        self._entries_max = entries_max
        self._marks: dict[str, bytes] = {}

    def knows(self, key: Key, kept_hash: bytes) -> bool:
        """Whether this secret was found right for a key whose kept hash is this."""
        mark = self._marks.get(key.key_id)
        return mark is not None and hmac.compare_digest(mark, self._mark(key, kept_hash))

    def learn(self, key: Key, kept_hash: bytes) -> None:
        """Note that the secret was found right."""
        self._marks.pop(key.key_id, None)
        self._marks[key.key_id] = self._mark(key, kept_hash)
        if len(self._marks) > self._entries_max:
            del self._marks[next(iter(self._marks))]

    def _mark(self, key: Key, kept_hash: bytes) -> bytes:
        return hmac.digest(self._random_key, kept_hash + key.secret.encode(), "sha256")
