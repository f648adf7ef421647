"""Authorization of one caller, with cached decisions.

A connection, or a request forwarded by another node, is authorized by a session. It caches decisions until the rules
change, so that the check of a publish is one lookup.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.security.permissions import (
    Decision,
    Permissions,
    grant_command,
    is_internal_topic,
    operation_name,
    resource_name,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

REMEMBERED_MAX: Final = 4_096
"""Maximum number of cached decisions; the cache is then cleared."""
_AGAIN_MS: Final = 100


class NotAllowedError(ProtocolError):
    """The access rules do not allow an operation; its code is FORBIDDEN.

    Args:
        operation: display name of the operation.
        resource: resource in the notation of `tidelog acl`: `topic:NAME`, `group:NAME` or `cluster`.
    """

    def __init__(self, message: str, operation: str, resource: str) -> None:
        super().__init__(pb.FORBIDDEN, message)
        self.operation = operation
        self.resource = resource


class Session:
    """An authenticated caller.

    Args:
        identity: id of the record of `__meta` that authenticates the caller; empty if no record does.
        expires_us: expiry in microseconds since 1970; 0: never.
    """

    __slots__ = ("_answers", "_asked_at", "_permissions", "expires_us", "identity", "principal", "roles")

    def __init__(
        self,
        permissions: Permissions,
        principal: str,
        roles: frozenset[str] = frozenset(),
        *,
        identity: str = "",
        expires_us: int = 0,
    ) -> None:
        self._permissions = permissions
        self.principal = principal
        self.roles = roles
        self.identity = identity
        self.expires_us = expires_us
        self._answers: dict[tuple[int, int, str], bool] = {}
        self._asked_at = permissions.changes

    @property
    def rules_version(self) -> int:
        """Incremented by every change of the rules, which invalidates earlier decisions."""
        return self._permissions.changes

    def may(self, operation: pb.Operation, resource: pb.Resource, name: str) -> bool:
        """Return whether the caller may perform an operation on the resource called `name`."""
        if self._asked_at != self._permissions.changes or len(self._answers) >= REMEMBERED_MAX:
            self._answers.clear()
            self._asked_at = self._permissions.changes
        key = (operation, resource, name)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self.decide(operation, resource, name).allowed
        return answer

    def decide(self, operation: pb.Operation, resource: pb.Resource, name: str) -> Decision:
        """Return the decision of `may` with its reason."""
        return self._permissions.decide(self.principal, self.roles, operation, resource, name)

    def check(self, operation: pb.Operation, resource: pb.Resource, name: str, *, by_id: bytes | None = None) -> None:
        """Refuse an operation without permission. The answer does not reveal whether the resource exists.

        Args:
            by_id: topic id in the request, whose name the caller may not know; None if the request has the name.

        Raises:
            ProtocolError: as returned by `refusal`.
        """
        if not self.may(operation, resource, name):
            raise self.refusal(operation, resource, name, by_id=by_id)

    def refusal(
        self, operation: pb.Operation, resource: pb.Resource, name: str, *, by_id: bytes | None = None
    ) -> ProtocolError:
        """Return the error for a refused operation; for the arguments see `check`.

        It is a `NotAllowedError`, or EPOCH_CHANGING until this node has read all rules, because an unread rule may
        allow the operation.
        """
        if not self._permissions.all_read:
            return ProtocolError(
                pb.EPOCH_CHANGING,
                "this node has not read all access rules since its start; retry, or use another node",
                _AGAIN_MS,
            )
        kind, permission = resource_name(resource), operation_name(operation)
        if by_id is not None and not self.may_see(name):
            what = f"{kind} with the id {by_id.hex()}"
            shown = "NAME"
        else:
            shown = name
            what = kind + (f" {name!r}" if name else "")
            if is_internal_topic(resource, name):
                what += " (internal topics require `cluster` on the cluster)"
        return NotAllowedError(
            f"{self.principal!r} has no permission: {permission} on the {what}; an administrator can grant "
            f"it with: {grant_command(self.principal, operation, resource, shown)}",
            permission,
            f"{kind}:{name}" if name else kind,
        )

    def may_see(self, name: str) -> bool:
        """Return whether the caller may know that a topic exists."""
        return self.may(pb.OP_DESCRIBE, pb.RES_TOPIC, name)

    def caller(self) -> pb.Caller:
        """Return the caller's identity as a message for another node."""
        return pb.Caller(
            principal=self.principal, roles=sorted(self.roles), identity=self.identity, expires_us=self.expires_us
        )

    def expired(self, now_us: int) -> bool:
        """Return whether the session has expired."""
        return 0 < self.expires_us <= now_us
