"""Changes of identities, rules and quotas, by the owner of `__meta`: one at a time, durable before anybody is told.

A change that would leave nobody who may change permissions is refused, unless the node has a file with administrators'
keys: they come back in with that.
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
from tidelog_broker.core.security.quotas import canonical, check_quota
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
    """Any node has one; its writes are refused wherever `__meta` is not owned.

    Args:
        meta_log: where changes are written.
        registry: the state that they change.
        workers: hash secrets.
        now_us: the wall clock, in microseconds since 1970.
        has_key_file: whether administrators have keys in a file of this node.
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

    async def change(self, asked: pb.SecurityChange) -> pb.SecurityChangeReply:
        """Carry a change out.

        Raises:
            ProtocolError: INVALID_REQUEST, or what stopped the write.
        """
        refuse_unknown_fields(asked)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            match asked.WhichOneof("change"):
                case "create_key":
                    return await self._create_key(asked.create_key, epoch)
                case "revoke_key":
                    missing = f"there is no API key {asked.revoke_key!r}"
                    return await self._remove(KEY + asked.revoke_key, missing, epoch)
                case "grant":
                    return await self._put_rule(asked.grant, epoch)
                case "revoke_rule":
                    missing = f"there is no rule {asked.revoke_rule!r}"
                    return await self._remove(RULE + asked.revoke_rule, missing, epoch)
                case "create_user":
                    return await self._users.create(asked.create_user, epoch)
                case "set_password":
                    return await self._users.set_password(asked.set_password, epoch)
                case "delete_user":
                    doomed, epoch = await self._users.standing(asked.delete_user, epoch)
                    missing = f"there is no user {asked.delete_user!r}"
                    return await self._remove(USER + doomed.user_id, missing, epoch)
                case "set_quota":
                    return await self._set_quota(asked.set_quota, epoch)
                case "remove_quota":
                    return await self._remove_quota(canonical(asked.remove_quota, is_new=False), epoch)
                case _:
                    raise ProtocolError(pb.INVALID_REQUEST, "the request names no change")

    async def _create_key(self, asked: pb.ApiKey, epoch: int) -> pb.SecurityChangeReply:
        check_principal(asked.principal)
        refuse_admin(self._registry.permissions, asked.principal)
        check_roles(asked.roles)
        if len(asked.note) > NOTE_CHARS_MAX or (asked.note and not asked.note.isprintable()):
            raise ProtocolError(pb.INVALID_REQUEST, f"a note has at most {NOTE_CHARS_MAX} printable characters")
        now_us = self._now_us()
        if asked.expires_us and asked.expires_us <= now_us:
            raise ProtocolError(pb.INVALID_REQUEST, "the key would have expired already: give a time to come")
        self._registry.check_limit(KEY)
        key, salt = new_key(), secrets.token_bytes(SALT_BYTES)
        record = self._registry.next_of(KEY + key.key_id)
        record.api_key.CopyFrom(
            pb.ApiKey(
                key_id=key.key_id,
                principal=asked.principal,
                roles=sorted(set(asked.roles)),
                created_us=now_us,
                expires_us=asked.expires_us,
                note=asked.note,
                salt=salt,
                secret_hash=await self._workers.call(0, slow_hash, key.secret, salt),
            )
        )
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(api_key=key.text, key=without_secrets(record.api_key))

    async def _put_rule(self, asked: pb.AccessRule, epoch: int) -> pb.SecurityChangeReply:
        check_rule(asked)
        if asked.deny and self._registry.permissions.is_admin(asked.principal):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"a rule that denies {asked.principal!r} something would never match: it is the administrator, and may "
                "do everything; to take that away, remove its keys from admin_key_file",
            )
        self._registry.check_limit(RULE)
        rule = pb.AccessRule()
        rule.CopyFrom(asked)
        rule.rule_id = new_id()
        if rule.deny:
            self._refuse_locking_out(added=rule)
        record = self._registry.next_of(RULE + rule.rule_id)
        record.rule.CopyFrom(rule)
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(rule=rule)

    async def _set_quota(self, asked: pb.Quota, epoch: int) -> pb.SecurityChangeReply:
        quota = pb.Quota()
        quota.CopyFrom(asked)
        quota.subject = canonical(asked.subject)
        check_quota(quota, is_admin=self._registry.quotas.is_admin(quota.subject))
        standing = self._registry.quotas.of_subject(quota.subject)
        if standing is None:
            self._registry.check_limit(QUOTA)
        quota.quota_id = new_id() if standing is None else standing.quota_id
        record = self._registry.next_of(QUOTA + quota.quota_id)
        record.quota.CopyFrom(quota)
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply(quota=quota)

    async def _remove_quota(self, subject: str, epoch: int) -> pb.SecurityChangeReply:
        standing = self._registry.quotas.of_subject(subject)
        if standing is None:
            epoch = await self._meta_log.ready_to_change(confirmed=True)
            standing = self._registry.quotas.of_subject(subject)
        if standing is None:
            raise ProtocolError(pb.INVALID_REQUEST, f"{subject!r} has no quota")
        record = self._registry.next_of(QUOTA + standing.quota_id)
        record.deleted = True
        await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply()

    async def _remove(self, record_id: str, missing: str, epoch: int) -> pb.SecurityChangeReply:
        standing = self._registry.get(record_id)
        if standing is None:
            epoch = await self._meta_log.ready_to_change(confirmed=True)
            standing = self._registry.get(record_id)
        if standing is None:
            raise ProtocolError(pb.INVALID_REQUEST, missing)
        if not standing.deleted:  # else it was asked again because the answer got lost
            self._refuse_locking_out(removed=record_id)
            record = self._registry.next_of(record_id)
            record.deleted = True
            await self._meta_log.write_security(record, epoch=epoch)
        return pb.SecurityChangeReply()

    def _refuse_locking_out(self, *, removed: str = "", added: pb.AccessRule | None = None) -> None:
        """Refuse a change after which nobody is left with a key or a password who may change permissions.

        Where there is nobody now, none is refused: callers of tokens may do it, as far as is known here.
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
                "this would leave no API key and no user who may change permissions: make another one first, or give "
                "the nodes an admin_key_file",
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
            not permissions.is_admin(principal)  # no key and no user is the administrator's
            and permissions.decide(principal, roles, pb.OP_CLUSTER, pb.RES_CLUSTER, "").allowed
            for principal, roles in itertools.chain(keys, users)
        )


def without_secrets(key: pb.ApiKey) -> pb.ApiKey:
    """Return a key as it may be told of."""
    told = pb.ApiKey()
    told.CopyFrom(key)
    told.ClearField("salt")
    told.ClearField("secret_hash")
    return told
