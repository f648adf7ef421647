"""API keys, users, access rules and quotas for blocking programs."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.base.loop_thread import LoopThread
from tidelog.security import access_rules as asynchronous
from tidelog.security.access_rules import AccessRule, KeyInfo, NewKey, Operation, Resource, UserInfo, Verdict
from tidelog.security.quotas import Quota, QuotaUsage


class Security:
    """See `tidelog.security.Security`; every method does the same and blocks."""

    def __init__(self, thread: LoopThread, security: asynchronous.Security) -> None:
        self._thread = thread
        self._security = security

    def create_key(
        self, principal: str, *, roles: Sequence[str] = (), expires_us: int | None = None, note: str = ""
    ) -> NewKey:
        """See `tidelog.security.Security.create_key`."""
        return self._thread.run(
            lambda: self._security.create_key(principal, roles=roles, expires_us=expires_us, note=note)
        )

    def revoke_key(self, key_id: str) -> None:
        """See `tidelog.security.Security.revoke_key`."""
        self._thread.run(lambda: self._security.revoke_key(key_id))

    def key_page(self, *, after: str = "") -> tuple[list[KeyInfo], str]:
        """See `tidelog.security.Security.key_page`."""
        return self._thread.run(lambda: self._security.key_page(after=after))

    def api_keys(self) -> list[KeyInfo]:
        """See `tidelog.security.Security.api_keys`."""
        return self._thread.run(self._security.api_keys)

    def create_user(self, name: str, password: str, *, roles: Sequence[str] = ()) -> UserInfo:
        """See `tidelog.security.Security.create_user`."""
        return self._thread.run(lambda: self._security.create_user(name, password, roles=roles))

    def set_password(self, name: str, password: str) -> UserInfo:
        """See `tidelog.security.Security.set_password`."""
        return self._thread.run(lambda: self._security.set_password(name, password))

    def delete_user(self, name: str) -> None:
        """See `tidelog.security.Security.delete_user`."""
        self._thread.run(lambda: self._security.delete_user(name))

    def users(self) -> list[UserInfo]:
        """See `tidelog.security.Security.users`."""
        return self._thread.run(self._security.users)

    def grant(self, rule: AccessRule) -> AccessRule:
        """See `tidelog.security.Security.grant`."""
        return self._thread.run(lambda: self._security.grant(rule))

    def revoke(self, rule_id: str) -> None:
        """See `tidelog.security.Security.revoke`."""
        self._thread.run(lambda: self._security.revoke(rule_id))

    def rule_page(self, *, after: str = "") -> tuple[list[AccessRule], str]:
        """See `tidelog.security.Security.rule_page`."""
        return self._thread.run(lambda: self._security.rule_page(after=after))

    def rules(self) -> list[AccessRule]:
        """See `tidelog.security.Security.rules`."""
        return self._thread.run(self._security.rules)

    def set_quota(self, subject: str, quota: Quota) -> None:
        """See `tidelog.security.Security.set_quota`."""
        self._thread.run(lambda: self._security.set_quota(subject, quota))

    def remove_quota(self, subject: str) -> None:
        """See `tidelog.security.Security.remove_quota`."""
        self._thread.run(lambda: self._security.remove_quota(subject))

    def quotas(self) -> dict[str, Quota]:
        """See `tidelog.security.Security.quotas`."""
        return self._thread.run(self._security.quotas)

    def quota_usage(self) -> list[QuotaUsage]:
        """See `tidelog.security.Security.quota_usage`."""
        return self._thread.run(self._security.quota_usage)

    def test(
        self,
        operation: Operation,
        resource: Resource,
        name: str = "",
        *,
        principal: str = "",
        roles: Sequence[str] = (),
    ) -> Verdict:
        """See `tidelog.security.Security.test`."""
        return self._thread.run(
            lambda: self._security.test(operation, resource, name, principal=principal, roles=roles)
        )
