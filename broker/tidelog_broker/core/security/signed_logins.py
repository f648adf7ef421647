"""Stateless SCRAM logins through a gateway: signed login state that any node can continue (ADR 0094)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.signed_data import DataSigner
from tidelog_broker.core.security.tickets import SKEW_MS
from tidelog_proto import broker_pb2 as pb

LOGIN_MS: Final = 30_000
"""Time limit of a login: two round trips and the client's password hashing."""
LOGIN_BYTES_MAX: Final = 8 * 1024
_LABEL: Final = b"tidelog login 1"
_US: Final = 1000


class SignedLogins:
    """Signs and verifies login state.

    Args:
        secret: process-local secret, used until `use` sets the cluster secrets.
    """

    def __init__(self, secret: bytes) -> None:
        self._signer = DataSigner(_LABEL, secret)

    def use(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Use the secrets of a cluster, see `DataSigner.use`."""
        self._signer.use(secrets, cluster_id)

    def sealed(self, first: str, login: Login, *, holder: str, now_us: int) -> bytes:
        """Return the signed state of a login after the client's first message.

        Args:
            first: the client's first message.
            holder: the principal of the gateway, which alone may present the state.
        """
        state = pb.SealedLogin(
            first=first, nonce=login.side.nonce, user_id=login.user_id, holder=holder, ends_us=now_us + LOGIN_MS * _US
        )
        return self._signer.sign(state.SerializeToString())

    def opened(self, sealed: bytes, *, holder: str, now_us: int) -> pb.SealedLogin | None:
        """Return the login state in `sealed`; None if it is not acceptable.

        It has no valid signature, cannot be decoded, has expired, or was issued to a principal other than `holder`.
        """
        text = self._signer.verify(sealed) if len(sealed) <= LOGIN_BYTES_MAX else None
        if text is None:
            return None
        try:
            state = pb.SealedLogin.FromString(text)
        except DecodeError:  # A node with another version has signed it.
            return None
        is_holders = hmac.compare_digest(state.holder.encode(), holder.encode())
        ends_in_us = state.ends_us - now_us
        return state if is_holders and -SKEW_MS * _US < ends_in_us <= (LOGIN_MS + SKEW_MS) * _US else None
