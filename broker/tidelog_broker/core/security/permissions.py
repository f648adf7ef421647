"""Who may do what: rules, and what they add up to.

A rule allows or denies operations on resources to a principal, to a role, or to everybody (`*`). What no rule allows
is denied, and what a rule denies is denied whatever others allow. An administrator may do everything; who that is
stands in the settings, not in rules, so that rules cannot lock everybody out.

Whoever may do something with a resource may see that it is there: each operation on it allows DESCRIBE, too.

The broker's own topics are for those who may change the cluster: no rule about topics is about them, not even one about
all of them.
"""

from __future__ import annotations

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
    "is_brokers_own",
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
"""What can be done with each kind of resource."""


class Decision(NamedTuple):
    """Whether something is allowed, and why."""

    allowed: bool
    because: str
    """The id of the rule that decided, or why none did."""


class Permissions:
    """The rules of the cluster, as far as `__meta` has been applied.

    Args:
        admins: principals that may do everything.
    """

    def __init__(self, admins: Collection[str] = ()) -> None:
        self._admins = frozenset(admins)
        self.changes = 0
        """Rises with every change: what was decided before it is to be asked again."""
        self.all_read = True
        """False in a node that has not read all rules since it started: what it denies, others may allow."""
        self._by_id: dict[str, pb.AccessRule] = {}
        self._by_principal: dict[str, dict[str, pb.AccessRule]] = {}

    def is_admin(self, principal: str) -> bool:
        """Whether a principal may do everything, because the settings name it."""
        return principal in self._admins

    def put(self, rule: pb.AccessRule) -> None:
        """Let a rule hold, instead of the one that had its id."""
        self.drop(rule.rule_id)
        self._by_id[rule.rule_id] = rule
        self._by_principal.setdefault(rule.principal, {})[rule.rule_id] = rule
        self.changes += 1

    def drop(self, rule_id: str) -> None:
        """Let a rule hold no longer; nothing happens where there is none."""
        rule = self._by_id.pop(rule_id, None)
        if rule is not None:
            of_principal = self._by_principal[rule.principal]
            del of_principal[rule_id]
            if not of_principal:
                del self._by_principal[rule.principal]
            self.changes += 1

    def copy(self) -> Permissions:
        """Return the same rules, to try a change on."""
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
        """Return whether a principal with these roles may do something with the resource called `name`."""
        if principal in self._admins:
            return Decision(allowed=True, because=f"{principal!r} is an administrator")
        if is_brokers_own(resource, name):
            operation, resource, name = pb.OP_CLUSTER, pb.RES_CLUSTER, ""
        allowing = ""
        for who in (principal, EVERYBODY, *(ROLE_PREFIX + role for role in roles)):
            for rule in self._by_principal.get(who, {}).values():
                if not _is_about(rule, resource, name):
                    continue
                if rule.deny:
                    if operation in rule.operations or pb.OP_ALL in rule.operations:
                        return Decision(allowed=False, because=rule.rule_id)
                elif operation in rule.operations or pb.OP_ALL in rule.operations or operation == pb.OP_DESCRIBE:
                    allowing = allowing or rule.rule_id
        if allowing:
            return Decision(allowed=True, because=allowing)
        return Decision(allowed=False, because="no rule allows it")


def is_brokers_own(resource: pb.Resource, name: str) -> bool:
    """Whether this is a topic of the broker itself, which is the cluster's."""
    return resource == pb.RES_TOPIC and name.startswith(INTERNAL_PREFIX)


def _is_about(rule: pb.AccessRule, resource: pb.Resource, name: str) -> bool:
    if rule.resource != resource:
        return False
    return name.startswith(rule.name) if rule.prefix else name == rule.name


def check_rule(rule: pb.AccessRule) -> None:
    """Refuse a rule that says nothing that can be.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    who = rule.principal.removeprefix(ROLE_PREFIX)
    if rule.principal != EVERYBODY:
        check_principal(who)
    if rule.resource not in OPERATIONS:
        raise ProtocolError(pb.INVALID_REQUEST, "a rule is about a topic, a group or the cluster")
    if not rule.operations:
        raise ProtocolError(pb.INVALID_REQUEST, "a rule names at least one operation")
    for operation in rule.operations:
        if operation != pb.OP_ALL and operation not in OPERATIONS[rule.resource]:
            done, what = operation_name(operation), resource_name(rule.resource)
            raise ProtocolError(pb.INVALID_REQUEST, f"{done} is nothing that is done with a {what}")
    if len(rule.name) > RULE_NAME_CHARS_MAX or (rule.name and not rule.name.isprintable()):
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a resource's name has at most {RULE_NAME_CHARS_MAX} characters, all printable"
        )
    if rule.resource == pb.RES_CLUSTER:
        if rule.name:
            raise ProtocolError(pb.INVALID_REQUEST, "there is one cluster, and it is not named in rules")
    elif not rule.name and not rule.prefix:
        raise ProtocolError(pb.INVALID_REQUEST, "a rule names its resource, or the beginning of their names")
    elif (fault := _never_matches(rule)) is not None:
        written = f"{resource_name(rule.resource)}:{rule.name}{'*' if rule.prefix else ''}"
        raise ProtocolError(pb.INVALID_REQUEST, f"a rule about {written!r} would never match: {fault}")


def _never_matches(rule: pb.AccessRule) -> str | None:
    """Return why no topic or group has a name that a rule is about, and what to write instead; None if one can."""
    if "*" in rule.name:
        begin = rule.name.partition("*")[0]
        return (
            f"* is a wildcard only at the end of a name; write {begin + '*'!r} for all names that begin with {begin!r}"
        )
    if rule.resource == pb.RES_GROUP:
        is_too_long = len(rule.name.encode("utf-8", "surrogatepass")) > GROUP_NAME_BYTES_MAX
        return f"a group's name has at most {GROUP_NAME_BYTES_MAX} bytes" if is_too_long else None
    if rule.name.startswith(INTERNAL_PREFIX):
        return (
            f"topics that begin with {INTERNAL_PREFIX} are the broker's own, and need `cluster` on the cluster; allow "
            "or deny that: tidelog acl grant PRINCIPAL cluster cluster"
        )
    if rule.prefix:
        if may_begin_topic_name(rule.name):
            return None
        return f"a topic's name is 1 to {TOPIC_NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -, and no name begins so"
    try:
        check_topic_name(rule.name)
    except ProtocolError as error:
        return error.message
    return None


def check_principal(name: str) -> None:
    """Refuse a principal's or a role's name that is empty, too long or unprintable, or looks like another name.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if (fault := principal_name_fault(name)) is not None:
        raise ProtocolError(pb.INVALID_REQUEST, fault)


def refuse_admin(permissions: Permissions, principal: str) -> None:
    """Refuse an API key or a user of the administrator, whose keys only the settings of the nodes name.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if permissions.is_admin(principal):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{principal!r} is the administrator, whose keys are in admin_key_file of the nodes alone: add one there "
            "(tidelog key new), or choose another principal and give it rights (tidelog acl grant)",
        )


def operation_name(operation: int) -> str:
    """Return what people call an operation: `produce`."""
    return _word(pb.Operation, operation, "OP_")


def resource_name(resource: int) -> str:
    """Return what people call a kind of resource: `topic`."""
    return _word(pb.Resource, resource, "RES_")


def _word(enum: type[pb.Operation | pb.Resource], number: int, prefix: str) -> str:
    names = {value: name for name, value in enum.items()}
    return names.get(number, str(number)).removeprefix(prefix).lower()
