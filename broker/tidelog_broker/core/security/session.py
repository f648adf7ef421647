"""What one caller may do, for as long as nothing changes.

A session is what a connection, or a request that another node hands on, is allowed by. It remembers what it was told by
the rules and asks them again once they have changed, so that a publish costs a look into a set.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.security.permissions import (
    Decision,
    Permissions,
    is_brokers_own,
    operation_name,
    resource_name,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

REMEMBERED_MAX: Final = 4_096
"""Answers that a session remembers; then it forgets all of them."""
_AGAIN_MS: Final = 100


class NotAllowedError(ProtocolError):
    """FORBIDDEN, by the rules.

    Args:
        message: for the caller.
        operation: that he asked for, as people call it.
        resource: on what, as `tidelog acl` writes it: `topic:NAME`, `group:NAME` or `cluster`.
    """

    def __init__(self, message: str, operation: str, resource: str) -> None:
        super().__init__(pb.FORBIDDEN, message)
        self.operation = operation
        self.resource = resource


class Session:
    """A caller whose name is known.

    Args:
        permissions: the rules.
        principal, roles: who it is.
        identity: the id of the record of `__meta` that vouches for it; empty when none does.
        expires_us: when that ends, in microseconds since 1970; 0: never.
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
    def rules_changes(self) -> int:
        """Rises with every change of the rules: what was answered before it is to be asked again."""
        return self._permissions.changes

    def may(self, operation: pb.Operation, resource: pb.Resource, name: str) -> bool:
        """Whether the caller may do this with the resource called `name`."""
        if self._asked_at != self._permissions.changes or len(self._answers) >= REMEMBERED_MAX:
            self._answers.clear()
            self._asked_at = self._permissions.changes
        key = (operation, resource, name)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self.decide(operation, resource, name).allowed
        return answer

    def decide(self, operation: pb.Operation, resource: pb.Resource, name: str) -> Decision:
        """As `may`, with the cause."""
        return self._permissions.decide(self.principal, self.roles, operation, resource, name)

    def check(self, operation: pb.Operation, resource: pb.Resource, name: str, *, by_id: bytes | None = None) -> None:
        """Refuse what the caller may not do. The answer is the same whether there is such a resource or not.

        Args:
            operation: what the request does.
            resource: to what.
            name: what that is called.
            by_id: by which id the caller names a topic, whose name it may not know; None: by its name.

        Raises:
            ProtocolError: as `refusal` returns it.
        """
        if not self.may(operation, resource, name):
            raise self.refusal(operation, resource, name, by_id=by_id)

    def refusal(
        self, operation: pb.Operation, resource: pb.Resource, name: str, *, by_id: bytes | None = None
    ) -> ProtocolError:
        """Return the error for a caller that may not do something; for the arguments see `check`.

        It is a `NotAllowedError`; EPOCH_CHANGING where this node has not read all rules since it started: one that
        allows it may be among the others.
        """
        if not self._permissions.all_read:
            return ProtocolError(
                pb.EPOCH_CHANGING, "this node has yet to read who may do what; try another one, or again", _AGAIN_MS
            )
        kind, asked = resource_name(resource), operation_name(operation)
        if by_id is not None and not self.may_see(name):
            what = f"{kind} with the id {by_id.hex()}"
        else:
            what = kind + (f" {name!r}" if name else "")
            if is_brokers_own(resource, name):
                what += " (the broker's own topics need `cluster` on the cluster)"
        return NotAllowedError(
            f"{self.principal!r} has no permission: {asked} on the {what}",
            asked,
            f"{kind}:{name}" if name else kind,
        )

    def may_see(self, name: str) -> bool:
        """Whether the caller may know that a topic exists."""
        return self.may(pb.OP_DESCRIBE, pb.RES_TOPIC, name)

    def caller(self) -> pb.Caller:
        """Return what another node is told about the caller."""
        return pb.Caller(
            principal=self.principal, roles=sorted(self.roles), identity=self.identity, expires_us=self.expires_us
        )

    def expired(self, now_us: int) -> bool:
        """Whether the session is over."""
        return 0 < self.expires_us <= now_us
