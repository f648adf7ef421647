"""Changes of users with passwords, by records of `__meta`.

The client computes the password verifier, so the password itself is never sent. A new password is a new record together
with the deletion of the old one, both durable at once; sessions with the old password end.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterable

from tidelog_broker.core.security.permissions import check_principal, refuse_admin
from tidelog_broker.core.security.registry import SCRAM_RECORD_ID, USER, SecurityRegistry
from tidelog_broker.metadata.security_limits import check_roles
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import new_id
from tidelog_proto.auth.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_SALT_BYTES,
    Verifier,
    is_verifier,
    user_name,
)
from tidelog_proto.errors import ProtocolError


class UserChanges:
    """Creates users and sets their passwords for `SecurityChanges`, which makes one change at a time.

    Args:
        now_us: the wall clock, in microseconds since 1970.
    """

    def __init__(self, meta_log: MetaLog, registry: SecurityRegistry, *, now_us: Callable[[], int]) -> None:
        self._meta_log = meta_log
        self._registry = registry
        self._now_us = now_us

    async def create(self, requested: pb.ScramUser, epoch: int) -> pb.SecurityChangeReply:
        """Create a user, computed from the state of `epoch`.

        Raises:
            ProtocolError: INVALID_REQUEST, or the error of the write.
        """
        check_principal(requested.name)
        _check_user(requested)
        refuse_admin(self._registry.permissions, requested.name)
        if self._registry.user(requested.name) is not None:
            quoted = shlex.quote(requested.name)
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"user {requested.name!r} already exists; change its password with `tidelog user password {quoted}`, "
                f"or delete it with `tidelog user delete {quoted}` first",
            )
        self._registry.check_limit(USER)
        return await self._put(requested, requested.roles, [], epoch)

    async def set_password(self, requested: pb.ScramUser, epoch: int) -> pb.SecurityChangeReply:
        """Set a user's password and keep its roles. Accepts existing names that a new user may not have.

        Raises:
            ProtocolError: see `create`.
        """
        _check_user(requested)
        refuse_admin(self._registry.permissions, requested.name)
        existing, epoch = await self.existing_user(requested.name, epoch)
        ended = self._registry.next_of(USER + existing.user_id)
        ended.deleted = True
        return await self._put(requested, existing.roles, [ended], epoch)

    async def existing_user(self, name: str, epoch: int) -> tuple[pb.ScramUser, int]:
        """Return a user, and the epoch of the state in which it was found: `epoch`, or a later one.

        Raises:
            ProtocolError: INVALID_REQUEST, the user does not exist.
        """
        found = self._registry.user(name)
        if found is None:
            epoch = await self._meta_log.ready_to_change(confirmed=True)
            found = self._registry.user(name)
        if found is None:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"user {name!r} does not exist; list the users with: tidelog user list"
            )
        return found, epoch

    async def _put(
        self, requested: pb.ScramUser, roles: Iterable[str], records: list[pb.SecurityRecord], epoch: int
    ) -> pb.SecurityChangeReply:
        user = pb.ScramUser(
            user_id=new_id(),
            name=requested.name,
            roles=sorted(set(roles)),
            created_us=self._now_us(),
            iterations=requested.iterations,
            salt=requested.salt,
            stored_key=requested.stored_key,
            server_key=requested.server_key,
        )
        record = self._registry.next_of(USER + user.user_id)
        record.user.CopyFrom(user)
        if not self._registry.scram_secret():
            secret = self._registry.next_of(SCRAM_RECORD_ID)
            secret.scram_secret = secrets.token_bytes(32)
            records = [*records, secret]
        await self._meta_log.write_security(*records, record, epoch=epoch)
        return pb.SecurityChangeReply(user=without_verifier(user))


def without_verifier(user: pb.ScramUser) -> pb.ScramUser:
    """Return a copy of a user without its password verifier."""
    return pb.ScramUser(user_id=user.user_id, name=user.name, roles=user.roles, created_us=user.created_us)


def _check_user(requested: pb.ScramUser) -> None:
    check_roles(requested.roles)
    try:
        prepared = user_name(requested.name)
    except ValueError as error:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"user name {requested.name!r} cannot be normalised with SASLprep (RFC 4013): {error}"
        ) from None
    if prepared != requested.name:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"user name {requested.name!r} must be normalised with SASLprep (RFC 4013); use {prepared!r}",
        )
    if not is_verifier(Verifier(requested.iterations, requested.salt, requested.stored_key, requested.server_key)):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the password verifier of user {requested.name!r} is not valid for SCRAM-SHA-256: it has "
            f"{requested.iterations} iterations, a salt of {len(requested.salt)} bytes and keys of "
            f"{len(requested.stored_key)} and {len(requested.server_key)} bytes; use {ITERATIONS_MIN} to "
            f"{ITERATIONS_MAX} iterations, a salt of {SCRAM_SALT_BYTES} bytes and keys of 32 bytes",
        )
