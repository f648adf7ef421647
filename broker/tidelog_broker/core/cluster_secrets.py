"""The cluster secrets: the first one authenticates this node and signs, any of them verifies.

There are two during a rotation. Each node is configured with the new secret in second place, then in first place, then
alone, so that every node can verify what any other node signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SECRETS_MAX: Final = 2


class ClusterSecrets:
    """One or two secrets in a shared object, so that a rotation takes effect for all users."""

    __slots__ = ("_values",)

    def __init__(self, *values: bytes) -> None:
        self._values: tuple[bytes, ...] = ()
        self.replace(values)

    @property
    def first(self) -> bytes:
        """The secret with which this node authenticates itself and signs."""
        return self._values[0]

    def __iter__(self) -> Iterator[bytes]:
        """Yield all valid secrets."""
        return iter(self._values)

    def __contains__(self, secret: bytes) -> bool:
        """Return whether a secret is still valid."""
        return secret in self._values

    def replace(self, values: tuple[bytes, ...]) -> bool:
        """Replace the valid secrets, and return whether they changed."""
        assert all(values or [b""]), "an empty secret would authenticate any node"
        assert len(values) <= SECRETS_MAX
        if values == self._values:
            return False
        self._values = values
        return True
