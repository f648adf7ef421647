"""Access rules and their evaluation.

A rule allows or denies operations on resources for a principal, a role, or everybody (`*`). Everything is denied unless
a rule allows it, and a denying rule overrides all allowing ones. Administrators may do everything; they are configured
in the settings rather than by rules, so that rules cannot lock all users out.

Permission for any operation on a resource includes DESCRIBE.

The broker's internal topics require permission to change the cluster; rules about topics do not apply to them.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.principal_names import EVERYBODY, ROLE_PREFIX, principal_name_fault
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, TOPIC_NAME_CHARS_MAX
from tidelog_proto.names import INTERNAL_PREFIX, check_topic_name, may_begin_topic_name

__all__ = [
    "EVERYBODY",
    "OPERATIONS",
    "ROLE_PREFIX",
    "RULE_NAME_CHARS_MAX",
    "Decision",
    "Permissions",
    "check_principal",
    "check_rule",
    "is_internal_topic",
    "operation_name",
    "refuse_admin",
    "resource_name",
]

RULE_NAME_CHARS_MAX: Final = 512

OPERATIONS: Final = {
    pb.RES_TOPIC: frozenset({pb.OP_PRODUCE, pb.OP_CONSUME, pb.OP_CREATE, pb.OP_ALTER, pb.OP_DELETE, pb.OP_DESCRIBE}),
    pb.RES_GROUP: frozenset({pb.OP_GROUP, pb.OP_DELETE, pb.OP_DESCRIBE}),
    pb.RES_CLUSTER: frozenset({pb.OP_CLUSTER, pb.OP_DESCRIBE, pb.OP_IMPERSONATE}),
}
"""The operations of each kind of resource."""


class Decision(NamedTuple):
    """The result of an evaluation, and its reason."""

    allowed: bool
    because: str
    """`rule ID` of the deciding rule, or a text if no rule decided."""


class Permissions:
    """Evaluates the access rules of the cluster, up to the applied position of `__meta`.

    Args:
        admins: principals that may do everything.
    """

    def __init__(self, admins: Collection[str] = ()) -> None:
        self._admins = frozenset(admins)
        self.changes = 0
        """Incremented by every change, which invalidates earlier decisions."""
        self.all_read = True
        """Whether this node has read all rules since its start; until then a denial is not final."""
        self._by_id: dict[str, pb.AccessRule] = {}
        self._by_principal: dict[str, dict[str, pb.AccessRule]] = {}

    def is_admin(self, principal: str) -> bool:
        """Return whether a principal is an administrator in the settings."""
        return principal in self._admins

    def put(self, rule: pb.AccessRule) -> None:
        """Add a rule, replacing the one with the same id."""
        self.drop(rule.rule_id)
        self._by_id[rule.rule_id] = rule
        self._by_principal.setdefault(rule.principal, {})[rule.rule_id] = rule
        self.changes += 1

    def drop(self, rule_id: str) -> None:
        """Remove a rule, if it exists."""
        rule = self._by_id.pop(rule_id, None)
        if rule is not None:
            of_principal = self._by_principal[rule.principal]
            del of_principal[rule_id]
            if not of_principal:
                del self._by_principal[rule.principal]
            self.changes += 1

    def copy(self) -> Permissions:
        """Return a copy, to evaluate a change without applying it."""
        copied = Permissions(self._admins)
        for rule in self._by_id.values():
            copied.put(rule)
        return copied

    def decide(
        self,
        principal: str,
        roles: Iterable[str],
        operation: pb.Operation,
        resource: pb.Resource,
        name: str,
    ) -> Decision:
        """Return whether, and why, a principal with these roles may perform an operation on the resource `name`."""
        if principal in self._admins:
            return Decision(allowed=True, because=f"{principal!r} is an administrator")
        if is_internal_topic(resource, name):
            operation, resource, name = pb.OP_CLUSTER, pb.RES_CLUSTER, ""
        allowing = ""
        for who in (principal, EVERYBODY, *(ROLE_PREFIX + role for role in roles)):
            for rule in self._by_principal.get(who, {}).values():
                if not _is_about(rule, resource, name):
                    continue
                if rule.deny:
                    if operation in rule.operations or pb.OP_ALL in rule.operations:
                        return Decision(allowed=False, because=f"rule {rule.rule_id}")
                elif operation in rule.operations or pb.OP_ALL in rule.operations or operation == pb.OP_DESCRIBE:
                    allowing = allowing or rule.rule_id
        if allowing:
            return Decision(allowed=True, because=f"rule {allowing}")
        return Decision(allowed=False, because="no rule allows it")


def is_internal_topic(resource: pb.Resource, name: str) -> bool:
    """Return whether a resource is an internal topic of the broker."""
    return resource == pb.RES_TOPIC and name.startswith(INTERNAL_PREFIX)


def _is_about(rule: pb.AccessRule, resource: pb.Resource, name: str) -> bool:
    if rule.resource != resource:
        return False
    return name.startswith(rule.name) if rule.prefix else name == rule.name


def check_rule(rule: pb.AccessRule) -> None:
    """Refuse an invalid rule.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    who = rule.principal.removeprefix(ROLE_PREFIX)
    if rule.principal != EVERYBODY:
        check_principal(who)
    if rule.resource not in OPERATIONS:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"resource must be topic, group or cluster, got {resource_name(rule.resource)}"
        )
    if not rule.operations:
        raise ProtocolError(pb.INVALID_REQUEST, "a rule must name at least one operation, got none")
    for operation in rule.operations:
        if operation != pb.OP_ALL and operation not in OPERATIONS[rule.resource]:
            done, what = operation_name(operation), resource_name(rule.resource)
            valid = ", ".join(sorted(map(operation_name, OPERATIONS[rule.resource])))
            raise ProtocolError(pb.INVALID_REQUEST, f"a {what} has no operation {done}; its operations are: {valid}")
    if len(rule.name) > RULE_NAME_CHARS_MAX or (rule.name and not rule.name.isprintable()):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a resource name must be at most {RULE_NAME_CHARS_MAX} printable characters, got {len(rule.name)}: "
            f"{rule.name[:80]!r}",
        )
    if rule.resource == pb.RES_CLUSTER:
        if rule.name:
            raise ProtocolError(pb.INVALID_REQUEST, f"a rule about the cluster must not have a name, got {rule.name!r}")
    elif not rule.name and not rule.prefix:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a rule must name its {resource_name(rule.resource)}, or a prefix of names followed by *, got neither",
        )
    elif (fault := _never_matches(rule)) is not None:
        written = f"{resource_name(rule.resource)}:{rule.name}{'*' if rule.prefix else ''}"
        raise ProtocolError(pb.INVALID_REQUEST, f"a rule about {written!r} would never match: {fault}")


def _never_matches(rule: pb.AccessRule) -> str | None:
    """Return why a rule matches no valid name of a topic or group, and the remedy; None if it can match."""
    if "*" in rule.name:
        begin = rule.name.partition("*")[0]
        return (
            f"* is a wildcard only at the end of a name; write {begin + '*'!r} for all names that begin with {begin!r}"
        )
    if rule.resource == pb.RES_GROUP:
        size_bytes = len(rule.name.encode("utf-8", "surrogatepass"))
        is_too_long = size_bytes > GROUP_NAME_BYTES_MAX
        return f"a group's name has at most {GROUP_NAME_BYTES_MAX} bytes, got {size_bytes}" if is_too_long else None
    if rule.name.startswith(INTERNAL_PREFIX):
        return (
            f"topics that begin with {INTERNAL_PREFIX} are internal and require the permission `cluster`: "
            "tidelog acl grant PRINCIPAL cluster cluster"
        )
    if rule.prefix:
        if may_begin_topic_name(rule.name):
            return None
        return f"a topic name has 1 to {TOPIC_NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -, so none begins with this prefix"
    try:
        check_topic_name(rule.name)
    except ProtocolError as error:
        return error.message
    return None


def check_principal(name: str) -> None:
    """Refuse the name of a principal or role that is empty, too long, unprintable, or confusable.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if (fault := principal_name_fault(name)) is not None:
        raise ProtocolError(pb.INVALID_REQUEST, fault)


def refuse_admin(permissions: Permissions, principal: str) -> None:
    """Refuse an API key or user for an administrator, whose credentials are configured on the nodes only.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if permissions.is_admin(principal):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{principal!r} is the administrator, whose keys are configured in admin_key_file of the nodes: add one "
            "there (tidelog key new), or choose another principal and give it rights (tidelog acl grant PRINCIPAL "
            "OPERATIONS RESOURCE)",
        )


def operation_name(operation: int) -> str:
    """Return the display name of an operation, for example `produce`."""
    return _word(pb.Operation, operation, "OP_")


def resource_name(resource: int) -> str:
    """Return the display name of a kind of resource, for example `topic`."""
    return _word(pb.Resource, resource, "RES_")


def grant_command(principal: str, operation: pb.Operation, resource: pb.Resource, name: str) -> str:
    """Return the command of an administrator that grants an operation."""
    words = [operation_name(operation), resource_name(resource)]
    if is_internal_topic(resource, name):
        words = [operation_name(pb.OP_CLUSTER), resource_name(pb.RES_CLUSTER)]
    elif name:
        words[1] += f":{name}"
    return shlex.join(["tidelog", "acl", "grant", principal, *words])


def _word(enum: type[pb.Operation | pb.Resource], number: int, prefix: str) -> str:
    names = {value: name for name, value in enum.items()}
    return names.get(number, str(number)).removeprefix(prefix).lower()
