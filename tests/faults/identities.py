"""Identities in a secured run: an operator, clients with exactly the needed permissions, the gateway, and a stranger.

Clients in this process and in others get them from the environment, which all processes of a run inherit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.faults.protected_files import put

from tidelog import Client
from tidelog.credentials import API_KEY_FILE_VARIABLE, ApiKeyFile
from tidelog.security import AccessRule
from tidelog_proto.auth.api_key import new_key

CLIENTS: Final = "load"
WEB_CLIENTS: Final = "web"
GATEWAY: Final = "gate"
STRANGER: Final = "stranger"
_ALL_TOPICS: Final = ("produce", "consume", "describe")
_RULES: Final = (
    *(AccessRule(who, _ALL_TOPICS, "topic", "", prefix=True) for who in (CLIENTS, WEB_CLIENTS, STRANGER)),
    *(AccessRule(who, ("group", "describe"), "group", "", prefix=True) for who in (CLIENTS, WEB_CLIENTS)),
    AccessRule(GATEWAY, ("impersonate",), "cluster"),
    AccessRule(STRANGER, ("produce", "consume"), "topic", "", prefix=True, deny=True),
)
"""Denied operations are also allowed by a rule, so each node must know all rules."""


class Identities:
    """The API keys of one run, each in a file, and each replaced during the run.

    Args:
        base: the directory of the run.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.of_nodes = base / "admin.keys"
        """The file that nodes take the administrator's keys from."""
        self._key_ids: dict[str, str] = {}
        self._operators = new_key().text
        put(self.of_nodes, self._operators.encode())
        put(self.file_of("operator"), self._operators.encode())
        os.environ[API_KEY_FILE_VARIABLE] = str(self.file_of(CLIENTS))

    def file_of(self, who: str) -> Path:
        """Return the path of an identity's key."""
        return self._base / f"{who}.key"

    @property
    def operator(self) -> ApiKeyFile:
        """Credentials of the operator."""
        return ApiKeyFile(self.file_of("operator"))

    @property
    def stranger(self) -> ApiKeyFile:
        """Credentials of an authenticated principal that may neither read nor write."""
        return ApiKeyFile(self.file_of(STRANGER))

    async def enrol(self, operator: Client) -> None:
        """Create all keys and permissions.

        Raises:
            TidelogError: the cluster cannot be asked yet. Completed steps are not repeated.
        """
        for who in (CLIENTS, WEB_CLIENTS, GATEWAY, STRANGER):
            if who not in self._key_ids:
                await self.another_key(operator, who)
        known = {(rule.principal, rule.resource, rule.deny) for rule in await operator.security.rules()}
        for rule in _RULES:
            if (rule.principal, rule.resource, rule.deny) not in known:
                await operator.security.grant(rule)

    async def another_key(self, operator: Client, who: str) -> str:
        """Give an identity another key; return the id of the previous one, which is still valid.

        Raises:
            TidelogError: it is not certain that there is another.
        """
        made = await operator.security.create_key(who)
        put(self.file_of(who), made.api_key.encode())
        before, self._key_ids[who] = self._key_ids.get(who, ""), made.info.key_id
        return before

    def another_operators_key(self) -> None:
        """Let nodes take another key of the administrator, besides the one that the operator shows."""
        self._operators = new_key().text
        put(self.of_nodes, f"{self.file_of('operator').read_text()}\n{self._operators}\n".encode())

    def show_operators_key(self) -> None:
        """Let the operator show the newest key."""
        put(self.file_of("operator"), self._operators.encode())

    def take_no_other_operators_key(self) -> None:
        """Let nodes take the newest key of the administrator alone."""
        put(self.of_nodes, self._operators.encode())
