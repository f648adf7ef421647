"""The secrets by which the nodes of a cluster know each other: the first proves and signs, each of them verifies.

There are two while one is replaced. Every node is given the new one behind the old, then in front of it, then alone:
at any moment what one node signs, all others verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SECRETS_MAX: Final = 2


class ClusterSecrets:
    """One or two secrets, the same object for everybody who uses them; see the module."""

    __slots__ = ("_values",)

    def __init__(self, *values: bytes) -> None:
        self._values: tuple[bytes, ...] = ()
        self.replace(values)

    @property
    def first(self) -> bytes:
        """The one that this node proves itself with."""
        return self._values[0]

    def __iter__(self) -> Iterator[bytes]:
        """Yield all that are valid."""
        return iter(self._values)

    def __contains__(self, secret: bytes) -> bool:
        """Whether a secret is still valid."""
        return secret in self._values

    def replace(self, values: tuple[bytes, ...]) -> bool:
        """Let these be valid from now on, and return whether they are others than before."""
        assert all(values or [b""]), "a cluster without a secret takes every node for one of its own"
        assert len(values) <= SECRETS_MAX
        if values == self._values:
            return False
        self._values = values
        return True
