"""A node's part in identities and permissions: its copy of them, who looks at credentials, who changes them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.offload import Offload
from tidelog_broker.base.tls import FILES_LOOK_S
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.security.tickets import Tickets
from tidelog_broker.metadata.admin_keys import AdminKeys
from tidelog_broker.metadata.authenticator import Authenticator
from tidelog_broker.metadata.certificates import Certificates
from tidelog_broker.metadata.security_changes import SecurityChanges
from tidelog_broker.metadata.state_log import MetaLog


class NodeSecurity:
    """See the module.

    Args:
        settings: the node's.
        workers: hash secrets.

    Raises:
        SettingsError: the file with the administrators' keys, or a rule for certificates, is not as it must be.
    """

    def __init__(self, settings: NodeSettings, workers: Offload) -> None:
        self._settings = settings
        self._workers = workers
        self.admin_keys = AdminKeys(settings.admin_key_file if settings.auth == "required" else None)
        self.registry = SecurityRegistry([settings.admin])
        self.tickets = Tickets(secrets.token_bytes(32))
        """Of callers of gateways; a node of a cluster goes by the cluster's secret as soon as it has it."""
        self.certificates = Certificates(settings.cert_principals, self.registry.permissions)
        """Makes principals of certificates."""
        self.authenticator = self._make_authenticator()
        """Finds out who clients are; None where nobody asks them."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each change of an identity or a rule; set by who keeps the connections."""

    def _make_authenticator(self) -> Authenticator | None:
        if self._settings.auth == "none":
            return None
        return Authenticator(
            self.registry,
            admin_keys=self.admin_keys,
            admin=self._settings.admin,
            workers=self._workers,
            now_us=_now_us,
        )

    async def follow_files(self) -> None:
        """Follow the administrators' file, as long as the node runs."""
        while self._settings.auth == "required" and self._settings.admin_key_file is not None:
            await asyncio.sleep(FILES_LOOK_S)
            if await self._workers.call(0, self.admin_keys.look):
                self.changed()

    def changes_in(self, meta_log: MetaLog) -> SecurityChanges:
        """Return what changes identities and rules, by records of `__meta`."""
        return SecurityChanges(
            meta_log,
            self.registry,
            workers=self._workers,
            now_us=_now_us,
            has_key_file=self._settings.admin_key_file is not None,
        )


def _now_us() -> int:
    return time.time_ns() // 1000
