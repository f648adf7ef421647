"""The security components of a node: its copy of identities and rules, authentication, and changes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import FILES_LOOK_S
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.security.signed_logins import SignedLogins
from tidelog_broker.core.security.tickets import Tickets
from tidelog_broker.metadata.admin_keys import AdminKeys
from tidelog_broker.metadata.authenticator import Authenticator
from tidelog_broker.metadata.certificates import Certificates
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.metadata.jwks import Jwks
from tidelog_broker.metadata.jwt_tokens import JwtTokens, TokenRules
from tidelog_broker.metadata.security_changes import SecurityChanges
from tidelog_broker.metadata.state_log import MetaLog

JWKS_EVERY_S: Final = 300.0
"""Interval of loading the keys of tokens from a URL, unless a token needs it sooner; see also `JWKS_AGAIN_S`."""
JWKS_AGAIN_S: Final = 15.0
"""Interval of loading the key set after a failure."""


class NodeSecurity:
    """Provides identities, permissions and authentication at one node.

    Raises:
        SettingsError: the file of administrators' keys or token keys, or a certificate rule, is invalid.
    """

    def __init__(self, settings: NodeSettings, workers: Offload, metrics: NodeMetrics) -> None:
        self._settings = settings
        self._workers = workers
        self._jwks = self._open_jwks(metrics)
        self.admin_keys = AdminKeys(settings.admin_key_file if settings.auth == "required" else None)
        self.registry = SecurityRegistry([settings.admin])
        self.tickets = Tickets(secrets.token_bytes(32))
        """Tickets of gateway callers; signed with the cluster's secret once that is known."""
        self.sealed_logins = SignedLogins(secrets.token_bytes(32))
        """Password logins of gateway callers between two requests."""
        self.certificates = Certificates(settings.cert_principals, self.registry.permissions, admin=settings.admin)
        """Maps certificates to principals."""
        self.authenticator = self._make_authenticator()
        """Authenticates clients; None if authentication is off."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each change of an identity or a rule; set by the server."""

    def use_secrets(self, secrets: Iterable[bytes], cluster_id: bytes) -> None:
        """Sign with the first of a cluster's secrets and verify with all; later changes of `secrets` apply."""
        self.tickets.use(secrets, cluster_id)
        self.sealed_logins.use(secrets, cluster_id)

    def _make_authenticator(self) -> Authenticator | None:
        if self._settings.auth == "none":
            return None
        work = CredentialWork(self._workers)
        return Authenticator(
            self.registry,
            admin_keys=self.admin_keys,
            admin=self._settings.admin,
            work=work,
            tokens=None if self._jwks is None else self._tokens(self._jwks, work),
            now_us=_now_us,
        )

    def _open_jwks(self, metrics: NodeMetrics) -> Jwks | None:
        settings = self._settings
        if settings.auth == "none" or settings.jwt_jwks is None:
            return None
        return Jwks(
            settings.jwt_jwks,
            workers=self._workers,
            failed=metrics.jwks_failures.inc,
            changed=lambda: self.changed(),  # noqa: PLW0108 - it is set later
        )

    def _tokens(self, jwks: Jwks, work: CredentialWork) -> JwtTokens:
        settings = self._settings
        rules = TokenRules(
            issuer=settings.jwt_issuer or "",
            audience=settings.jwt_audience or "",
            leeway_s=settings.jwt_leeway_s,
            principal_claim=settings.jwt_principal_claim,
            roles_claim=settings.jwt_roles_claim,
            admin=settings.admin,
        )
        return JwtTokens(jwks, rules, permissions=self.registry.permissions, work=work)

    def ended_because(self, identity: str) -> str:
        """Return why the identity of a session has ended, according to key files and issuers; "" if it is valid."""
        if self.admin_keys.has_ended(identity):
            return "the API key was removed from admin_key_file"
        if self._jwks is not None and self._jwks.has_ended(identity):
            return "the token's key is no longer published by its issuer"
        return ""

    async def follow_jwks(self) -> None:
        """Load the keys of tokens repeatedly until cancelled."""
        if self._jwks is not None:
            is_file = "://" not in (self._settings.jwt_jwks or "")
            every_s, again_s = (FILES_LOOK_S, FILES_LOOK_S) if is_file else (JWKS_EVERY_S, JWKS_AGAIN_S)
            await self._jwks.follow(every_s=every_s, again_s=again_s)

    async def follow_files(self) -> None:
        """Reload the file of administrators' keys repeatedly until cancelled."""
        while self._settings.auth == "required" and self._settings.admin_key_file is not None:
            await asyncio.sleep(FILES_LOOK_S)
            if await self._workers.call(0, self.admin_keys.look):
                self.changed()

    def changes_in(self, meta_log: MetaLog) -> SecurityChanges:
        """Return the component that changes identities and rules by writing records of `__meta`."""
        return SecurityChanges(
            meta_log,
            self.registry,
            workers=self._workers,
            now_us=_now_us,
            has_key_file=self._settings.admin_key_file is not None,
        )


def _now_us() -> int:
    return time.time_ns() // 1000
