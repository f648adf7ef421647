"""Changes of identities, rules and quotas, one at a time, by the owner of `__meta`; durable before they are answered.

A change that would leave no API key and no user with the permission to change permissions is refused, unless the node
has a file of administrators' keys.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.security.api_keys import SALT_BYTES, slow_hash
from tidelog_broker.core.security.permissions import Permissions, check_principal, check_rule, refuse_admin
from tidelog_broker.core.security.quota_rules import canonical, check_quota
from tidelog_broker.core.security.registry import KEY, QUOTA, RULE, USER, SecurityRegistry
from tidelog_broker.core.unknown_fields import refuse_unknown_fields
from tidelog_broker.metadata.security_limits import check_roles
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.metadata.user_changes import UserChanges
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import new_id, new_key
from tidelog_proto.errors import ProtocolError

NOTE_CHARS_MAX: Final = 200


class SecurityChanges:
    """Changes security records. Every node has an instance; its writes are refused unless the node owns `__meta`.

    Args:
        now_us: the wall clock, in microseconds since 1970.
        has_key_file: whether this node has a file of administrators' keys.
    """

    def __init__(
        self,
        meta_log: MetaLog,
        registry: SecurityRegistry,
        *,
        workers: Offload,
        now_us: Callable[[], int],
        has_key_file: bool,
    ) -> None:
        self._meta_log = meta_log
        self._registry = registry
        self._workers = workers
        self._now_us = now_us
        self._has_key_file = has_key_file
        self._changing = asyncio.Lock()
        self._users = UserChanges(meta_log, registry, now_us=now_us)

    async def change(self, change: pb.SecurityChange) -> pb.SecurityChangeReply:
        """Carry out a change.

        Raises:
            ProtocolError: INVALID_REQUEST, or the error of the write.
        """
        refuse_unknown_fields(change)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            match change.WhichOneof("change"):
                case "create_key":
                    return await self._create_key(change.create_key, epoch)
                case "revoke_key":
                    missing = f"API key {change.revoke_key!r} does not exist; list the keys with: tidelog key list"
                    return await self._remove(KEY + change.revoke_key, missing, epoch)
                case "grant":
                    return await self._put_rule(change.grant, epoch)
                case "revoke_rule":
                    missing = f"rule {change.revoke_rule!r} does not exist; list the rules with: tidelog acl list"
                    return await self._remove(RULE + change.revoke_rule, missing, epoch)
                case "create_user":
                    return await self._users.create(change.create_user, epoch)
                case "set_password":
                    return await self._users.set_password(change.set_password, epoch)
                case "delete_user":
                    doomed, epoch = await self._users.existing_user(change.delete_user, epoch)
                    missing = f"user {change.delete_user!r} does not exist; list the users with: tidelog user list"
                    return await self._remove(USER + doomed.user_id, missing, epoch)
                case "set_quota":
                    return await self._set_quota(change.set_quota, epoch)
                case "remove_quota":
                    return await self._remove_quota(canonical(change.remove_quota, is_new=False), epoch)
                case _:
                    raise ProtocolError(
                        pb.INVALID_REQUEST,
                        "the security change is empty or of a kind that this node does not support; set "
                        "one change, or upgrade the node",
                    )

    async def _create_key(self, requested: pb.ApiKey, epoch: int) -> pb.SecurityChangeReply:
        check_principal(requested.principal)
        refuse_admin(self._registry.permissions, requested.principal)
        check_roles(requested.roles)
        if len(requested.note) > NOTE_CHARS_MAX or (requested.note and not requested.note.isprintable()):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"a note must have at most {NOTE_CHARS_MAX} printable characters, "
                f"got {len(requested.note)}: {requested.note[:80]!r}",
            )
        now_us = self._now_us()
        if requested.expires_us and requested.expires_us <= now_us:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the key's expiry is in the past: {requested.expires_us} microseconds since 1970, now {now_us}; "
                "choose a later time",
            )
        self._registry.check_limit(KEY)
        key, salt = new_key(), secrets.token_bytes(SALT_BYTES)
        record = self._registry.next_of(KEY + key.key_id)
        record.api_key.CopyFrom(
            pb.ApiKey(
                key_id=key.key_id,
                principal=requested.principal,
                roles=sorted(set(requested.roles)),
                created_us=now_us,
                expires_us=requested.expires_us,
                note=requested.note,
                salt=salt,
                secret_hash=await self._workers.call(0, slow_hash, key.secret, salt),
            )
        )
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(api_key=key.text, key=without_secrets(record.api_key))

    async def _put_rule(self, requested: pb.AccessRule, epoch: int) -> pb.SecurityChangeReply:
        check_rule(requested)
        if requested.deny and self._registry.permissions.is_admin(requested.principal):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"a rule that denies {requested.principal!r} something would have no effect: it is the administrator, "
                "which may do everything; to end its access, remove its keys from admin_key_file",
            )
        self._registry.check_limit(RULE)
        rule = pb.AccessRule()
        rule.CopyFrom(requested)
        rule.rule_id = new_id()
        if rule.deny:
            self._refuse_locking_out(added=rule)
        record = self._registry.next_of(RULE + rule.rule_id)
        record.rule.CopyFrom(rule)
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(rule=rule)

    async def _set_quota(self, requested: pb.Quota, epoch: int) -> pb.SecurityChangeReply:
        quota = pb.Quota()
        quota.CopyFrom(requested)
        quota.subject = canonical(requested.subject)
        check_quota(quota, is_admin=self._registry.quotas.is_admin(quota.subject))
        existing = self._registry.quotas.of_subject(quota.subject)
        if existing is None:
            self._registry.check_limit(QUOTA)
        quota.quota_id = new_id() if existing is None else existing.quota_id
        record = self._registry.next_of(QUOTA + quota.quota_id)
        record.quota.CopyFrom(quota)
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(quota=quota)

    async def _remove_quota(self, subject: str, epoch: int) -> pb.SecurityChangeReply:
        existing = self._registry.quotas.of_subject(subject)
        if existing is None:
            epoch = await self._meta_log.ready_to_change(confirmed=True)
            existing = self._registry.quotas.of_subject(subject)
        if existing is None:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"{subject!r} has no quota; list the quotas with: tidelog quota list"
            )
        record = self._registry.next_of(QUOTA + existing.quota_id)
        record.deleted = True
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply()

    async def _remove(self, record_id: str, missing: str, epoch: int) -> pb.SecurityChangeReply:
        existing = self._registry.get(record_id)
        if existing is None:
            epoch = await self._meta_log.ready_to_change(confirmed=True)
            existing = self._registry.get(record_id)
        if existing is None:
            raise ProtocolError(pb.INVALID_REQUEST, missing)
        if not existing.deleted:  # otherwise it is a repeated request whose answer was lost
            self._refuse_locking_out(removed=record_id)
            record = self._registry.next_of(record_id)
            record.deleted = True
            await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply()

    def _refuse_locking_out(self, *, removed: str = "", added: pb.AccessRule | None = None) -> None:
        """Refuse a change after which no API key and no user may change permissions.

        Nothing is refused if this node has a file of administrators' keys, or if that is the case already, since
        callers with tokens or certificates may have the permission.
        """
        if self._has_key_file:
            return
        permissions = self._registry.permissions.copy()
        if not self._may_change(permissions, removed=""):
            return
        if added is not None:
            permissions.put(added)
        permissions.drop(removed.removeprefix(RULE))
        if not self._may_change(permissions, removed=removed):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                "the change would leave no API key and no user with permission to change permissions; create another "
                "key or user with that permission first, or set admin_key_file on the nodes",
            )

    def _may_change(self, permissions: Permissions, *, removed: str) -> bool:
        now_us = self._now_us()
        keys = (
            (key.principal, key.roles)
            for key in self._registry.api_keys()
            if KEY + key.key_id != removed and not 0 < key.expires_us <= now_us
        )
        users = ((user.name, user.roles) for user in self._registry.scram_users() if USER + user.user_id != removed)
        return any(
            not permissions.is_admin(principal)  # Neither keys nor users can be the administrator.
            and permissions.decide(principal, roles, pb.OP_CLUSTER, pb.RES_CLUSTER, "").allowed
            for principal, roles in itertools.chain(keys, users)
        )


def without_secrets(key: pb.ApiKey) -> pb.ApiKey:
    """Return a copy of a key without its salt and hash."""
    public = pb.ApiKey()
    public.CopyFrom(key)
    public.ClearField("salt")
    public.ClearField("secret_hash")
    return public
