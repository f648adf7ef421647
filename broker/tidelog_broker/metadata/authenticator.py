"""Authentication of clients by the credentials of their HELLO."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from tidelog_broker.core.security.api_keys import VerifiedSecrets, slow_hash
from tidelog_broker.core.security.registry import ADMIN_BY_RECORD, KEY, SecurityRegistry
from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.admin_keys import FILE_IDENTITY_PREFIX, AdminKeys
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.metadata.jwt_tokens import JwtTokens
from tidelog_broker.metadata.scram_logins import ScramLogins
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import Key, parse_key
from tidelog_proto.errors import ProtocolError


class Authenticator:
    """Verifies the credentials of clients, and creates their sessions.

    Args:
        tokens: verifies JWTs; None if the node accepts none.
        now_us: the wall clock, in microseconds since 1970.
    """

    def __init__(
        self,
        registry: SecurityRegistry,
        *,
        admin_keys: AdminKeys,
        admin: str,
        work: CredentialWork,
        tokens: JwtTokens | None,
        now_us: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._admin_keys = admin_keys
        self._admin = admin
        self._work = work
        self._tokens = tokens
        self._now_us = now_us
        self.logins = ScramLogins(registry)
        """Password logins, which take two messages."""
        self._verified_secrets = VerifiedSecrets(secrets.token_bytes(32))

    async def session_of(self, credentials: pb.Credentials, *, address: str) -> Session:
        """Return the session for credentials that were presented from an address (see `counted_address`).

        Raises:
            ProtocolError: UNAUTHENTICATED, CREDENTIALS_EXPIRED, OVERLOADED if too many callers authenticate at a time,
                or EPOCH_CHANGING while the keys of tokens are not available.
        """
        match credentials.WhichOneof("kind"):
            case "api_key":
                return await self._of_api_key(credentials.api_key, address)
            case "token" if self._tokens is not None:
                return await self._tokens.session_of(credentials.token, address=address)
            case "token":
                raise ProtocolError(
                    pb.UNAUTHENTICATED,
                    "this node does not accept tokens, because its setting jwt_jwks is not set; use an API key",
                )
            case _:
                raise ProtocolError(
                    pb.UNAUTHENTICATED,
                    "this node requires authentication: pass an API key (TIDELOG_API_KEY_FILE), a token, a password, "
                    "or a certificate of the node's CA (TIDELOG_CERT_FILE, TIDELOG_KEY_FILE)",
                )

    async def _of_api_key(self, text: str, address: str) -> Session:
        key = parse_key(text)
        permissions = self._registry.permissions
        of_admin = self._admin_keys.secret_of(key.key_id)
        if of_admin is not None and hmac.compare_digest(of_admin, key.secret):
            return Session(permissions, self._admin, identity=FILE_IDENTITY_PREFIX + key.key_id)
        stored = self._registry.key(key.key_id)
        if stored is None or not await self._is_right(key, stored, address):
            raise ProtocolError(
                pb.UNAUTHENTICATED,
                f"the API key {key.key_id} does not exist, was revoked, or has another secret; use another "
                "key, or create one with: tidelog key create PRINCIPAL",
            )
        if 0 < stored.expires_us <= self._now_us():
            raise ProtocolError(pb.CREDENTIALS_EXPIRED, f"the API key {key.key_id} has expired; use a newer key")
        if not self._registry.vouches_for(KEY + key.key_id, stored.principal):
            # It was revoked during the verification.
            raise ProtocolError(pb.UNAUTHENTICATED, f"the API key {key.key_id} was revoked; use another key")
        if permissions.is_admin(
            stored.principal
        ):  # The key was created by an older release, or before `admin` was set to this name.
            raise ProtocolError(pb.UNAUTHENTICATED, ADMIN_BY_RECORD)
        return Session(
            permissions,
            stored.principal,
            frozenset(stored.roles),
            identity=KEY + key.key_id,
            expires_us=stored.expires_us,
        )

    async def _is_right(self, key: Key, stored: pb.ApiKey, address: str) -> bool:
        if self._verified_secrets.knows(key, stored.secret_hash):
            return True
        presented_hash = await self._work.call(address, slow_hash, key.secret, stored.salt)
        if not hmac.compare_digest(presented_hash, stored.secret_hash):
            return False
        self._verified_secrets.learn(key, stored.secret_hash)
        return True
