"""Logins of a gateway's callers: begun at one node and gone on with at any; no node keeps them meanwhile (ADR 0094)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.seals import Seals
from tidelog_broker.core.security.tickets import SKEW_MS
from tidelog_proto import broker_pb2 as pb

LOGIN_MS: Final = 30_000
"""How long a login may take: two round trips, and a password that is stretched."""
LOGIN_BYTES_MAX: Final = 8 * 1024
_LABEL: Final = b"tidelog login 1"
_US: Final = 1000


class SealedLogins:
    """Seals and opens.

    Args:
        secret: of this process, for as long as there is none of a cluster.
    """

    def __init__(self, secret: bytes) -> None:
        self._seals = Seals(_LABEL, secret)

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Go by the secrets of a cluster from now on, see `Seals.use`."""
        self._seals.use(secrets, cluster_id)

    def sealed(self, first: str, login: Login, *, holder: str, now_us: int) -> bytes:
        """Return a login that has begun with a client's first message, for the principal `holder` to keep."""
        said = pb.SealedLogin(
            first=first, nonce=login.side.nonce, user_id=login.user_id, holder=holder, ends_us=now_us + LOGIN_MS * _US
        )
        return self._seals.sealed(said.SerializeToString())

    def opened(self, sealed: bytes, *, holder: str, now_us: int) -> pb.SealedLogin | None:
        """Return what was sealed for the principal `holder`; None: nothing that counts by now."""
        text = self._seals.opened(sealed) if len(sealed) <= LOGIN_BYTES_MAX else None
        if text is None:
            return None
        try:
            said = pb.SealedLogin.FromString(text)
        except DecodeError:  # only another version seals what this one cannot read
            return None
        is_holders = hmac.compare_digest(said.holder.encode(), holder.encode())
        ends_in_us = said.ends_us - now_us
        return said if is_holders and -SKEW_MS * _US < ends_in_us <= (LOGIN_MS + SKEW_MS) * _US else None
