"""API keys, users, access rules and quotas: `Client.security`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeVar

from tidelog.auth.scram_password import Password, user_of
from tidelog.cluster.callers import Caller, Identified, identify_by_password, parse_identify_reply
from tidelog.cluster.routing import Router, repeated
from tidelog.errors import InvalidRequestError
from tidelog.requests.needed_permission import check_permission
from tidelog.security.quotas import Quota, QuotaUsage, quota_of, quota_to, usage_of
from tidelog_proto import broker_pb2 as pb

N = TypeVar("N")

Operation = Literal[
    "produce", "consume", "create", "alter", "delete", "describe", "group", "cluster", "impersonate", "all"
]
Resource = Literal["topic", "group", "cluster"]

OPERATIONS: Final[dict[str, pb.Operation]] = {
    "produce": pb.OP_PRODUCE,
    "consume": pb.OP_CONSUME,
    "create": pb.OP_CREATE,
    "alter": pb.OP_ALTER,
    "delete": pb.OP_DELETE,
    "describe": pb.OP_DESCRIBE,
    "group": pb.OP_GROUP,
    "cluster": pb.OP_CLUSTER,
    "impersonate": pb.OP_IMPERSONATE,
    "all": pb.OP_ALL,
}
RESOURCES: Final[dict[str, pb.Resource]] = {"topic": pb.RES_TOPIC, "group": pb.RES_GROUP, "cluster": pb.RES_CLUSTER}
_OPERATION_NAMES: Final = {number: name for name, number in OPERATIONS.items()}
_RESOURCE_NAMES: Final = {number: name for name, number in RESOURCES.items()}


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key, without its secret.

    Attributes:
        key_id: the key's id; the key begins with it: `tlk_ID_SECRET`.
        principal: the principal that the key authenticates.
        roles: roles of the principal.
        created_us: when the key was created, µs since 1970.
        expires_us: when the key expires, µs since 1970; None: never.
        note: a description.
    """

    key_id: str
    principal: str
    roles: tuple[str, ...]
    created_us: int
    expires_us: int | None
    note: str


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user with a password.

    Attributes:
        name: the user's name, which is also the principal.
        roles: roles of the principal.
        changed_us: when the password was set, µs since 1970.
    """

    name: str
    roles: tuple[str, ...]
    changed_us: int


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was created. The key itself is returned only here and not stored."""

    info: KeyInfo
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An access rule.

    Attributes:
        principal: a name, "role:NAME", or "*" for every principal.
        operations: the operations that are allowed or denied.
        resource: type of the resource.
        name: name of the resource; "" for the cluster.
        prefix: whether `name` is a prefix of names; "" then matches all names.
        deny: whether the rule denies the operations; a denial overrides every rule that allows.
        rule_id: id that the cluster has assigned; "" before `Security.grant`.
    """

    principal: str
    operations: tuple[str, ...]
    resource: str
    name: str = ""
    prefix: bool = False
    deny: bool = False
    rule_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an operation is allowed, and the reason."""

    allowed: bool
    because: str


class Security:
    """Administration of API keys, users, access rules and quotas: `Client.security`.

    Args:
        router: the client's router.
        check: raises if the client cannot be used.
    """

    def __init__(self, router: Router, check: Callable[[], None]) -> None:
        self._router = router
        self._check_usable = check

    async def create_key(
        self, principal: str, *, roles: Sequence[str] = (), expires_us: int | None = None, note: str = ""
    ) -> NewKey:
        """Create an API key and return it; its secret cannot be read later.

        Args:
            principal: the principal that the key authenticates.
            roles: roles of the principal.
            expires_us: when the key expires, µs since 1970; None: never.
            note: a description.
        """
        request = pb.ApiKey(principal=principal, roles=roles, expires_us=expires_us or 0, note=note)
        reply = await self._change(pb.SecurityChange(create_key=request))
        return NewKey(_key(reply.key), reply.api_key)

    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key; connections that it authenticated end within a second."""
        await self._change(pb.SecurityChange(revoke_key=key_id))

    async def key_page(self, *, after: str = "") -> tuple[list[KeyInfo], str]:
        """Return up to 1,000 keys, without their secrets, and the `after` of the next page.

        Args:
            after: "" for the first page, otherwise the value returned with the previous page. "" is returned with the
                last page.
        """
        reply = await self._page(pb.SecurityList.KEYS, after)
        return [*map(_key, reply.keys)], reply.last

    async def api_keys(self) -> list[KeyInfo]:
        """Return all keys, without their secrets."""
        keys: list[KeyInfo] = []
        async for reply in self._pages(pb.SecurityList.KEYS):
            keys += map(_key, reply.keys)
        return keys

    async def create_user(self, name: str, password: str, *, roles: Sequence[str] = ()) -> UserInfo:
        """Create a user with a password. The password is not sent; nodes store a verifier.

        Args:
            name: the user's name, which is also the principal; normalized by SASLprep.
            password: 8 to 1,024 characters.
            roles: roles of the principal.

        Raises:
            InvalidRequestError: the user exists, or an argument is invalid.
        """
        user = await user_of(name, password, tuple(roles))
        return _user((await self._change(pb.SecurityChange(create_user=user))).user)

    async def set_password(self, name: str, password: str) -> UserInfo:
        """Change a user's password, but not the roles. Connections that used the old password end within a second.

        Raises:
            InvalidRequestError: the user does not exist, or the password is invalid.
        """
        user = await user_of(name, password)
        return _user((await self._change(pb.SecurityChange(set_password=user))).user)

    async def delete_user(self, name: str) -> None:
        """Delete a user; its connections end within a second.

        Raises:
            InvalidRequestError: the user does not exist.
        """
        await self._change(pb.SecurityChange(delete_user=name))

    async def users(self) -> list[UserInfo]:
        """Return all users with passwords, sorted by name."""
        infos: list[UserInfo] = []
        async for reply in self._pages(pb.SecurityList.USERS):
            infos += map(_user, reply.users)
        return sorted(infos, key=lambda user: user.name)

    async def grant(self, rule: AccessRule) -> AccessRule:
        """Add a rule, which may also deny, and return it with its id.

        Raises:
            InvalidRequestError: an operation or the type of the resource is unknown, or the cluster refuses the rule.
        """
        request = pb.AccessRule(
            principal=rule.principal,
            deny=rule.deny,
            operations=[_number(OPERATIONS, name) for name in rule.operations],
            resource=_number(RESOURCES, rule.resource),
            name=rule.name,
            prefix=rule.prefix,
        )
        reply = await self._change(pb.SecurityChange(grant=request))
        return _rule(reply.rule)

    async def revoke(self, rule_id: str) -> None:
        """Remove a rule."""
        await self._change(pb.SecurityChange(revoke_rule=rule_id))

    async def rule_page(self, *, after: str = "") -> tuple[list[AccessRule], str]:
        """Return up to 1,000 rules, and the `after` of the next page; see `key_page`."""
        reply = await self._page(pb.SecurityList.RULES, after)
        return [*map(_rule, reply.rules)], reply.last

    async def rules(self) -> list[AccessRule]:
        """Return all rules."""
        all_rules: list[AccessRule] = []
        async for reply in self._pages(pb.SecurityList.RULES):
            all_rules += map(_rule, reply.rules)
        return all_rules

    async def set_quota(self, subject: str, quota: Quota) -> None:
        """Set the quota of a subject, replacing an earlier one; it applies on all nodes within a second.

        Args:
            subject: to whom the quota applies: a principal; "role:NAME", each principal with the role; "*", each
                principal; "address:CIDR", each address of the network; "default", each principal and address without a
                narrower quota.
            quota: the limits; those that are None are not set.
        """
        await self._change(pb.SecurityChange(set_quota=quota_to(subject, quota)))

    async def remove_quota(self, subject: str) -> None:
        """Remove the quota of a subject; requests that it delayed continue immediately."""
        await self._change(pb.SecurityChange(remove_quota=subject))

    async def quotas(self) -> dict[str, Quota]:
        """Return all quotas by subject."""
        by_subject: dict[str, Quota] = {}
        async for reply in self._pages(pb.SecurityList.QUOTAS):
            by_subject |= {quota.subject: quota_of(quota) for quota in reply.quotas}
        return by_subject

    async def quota_usage(self) -> list[QuotaUsage]:
        """Return the usage of principals and networks with quotas on each node that answers; at most 1,000 per node."""
        self._check_usable()
        envelope = pb.Envelope(security_list=pb.SecurityList(what=pb.SecurityList.QUOTA_USAGE))
        frame = await self._router.call_any(partial(repeated, envelope), repeatable=True)
        return [usage_of(usage) for usage in frame.envelope.security_list_reply.usages]

    async def test(
        self,
        operation: Operation,
        resource: Resource,
        name: str = "",
        *,
        principal: str = "",
        roles: Sequence[str] = (),
    ) -> Verdict:
        """Return whether a principal may perform an operation on a resource, and why.

        Args:
            operation: the operation.
            resource: type of the resource.
            name: name of the resource; "" for the cluster.
            principal: the principal; "": that of this client. Another principal needs the permission to change rules.
            roles: roles of `principal`.

        Raises:
            InvalidRequestError: the operation or the type of the resource is unknown.
        """
        self._check_usable()
        request = pb.AccessTest(
            principal=principal,
            roles=roles,
            operation=_number(OPERATIONS, operation),
            resource=_number(RESOURCES, resource),
            name=name,
        )
        frame = await self._router.call_any(partial(repeated, pb.Envelope(access_test=request)), repeatable=True)
        return Verdict(frame.envelope.access_test_reply.allowed, frame.envelope.access_test_reply.because)

    async def check(self, operation: Operation, resource: Resource, name: str = "") -> None:
        """Raise if this client's principal may not perform an operation; the node audits a refusal.

        A gateway calls this before it does expensive work for a request.

        Raises:
            ForbiddenError: the operation is not allowed.
            InvalidRequestError: the operation or the type of the resource is unknown.
        """
        self._check_usable()
        await check_permission(self._router, _number(OPERATIONS, operation), _number(RESOURCES, resource), name)

    async def identify(self, credentials: pb.Credentials | Password, *, again: bool = True) -> Identified:
        """Return the principal to which credentials belong, for a gateway that may `impersonate`.

        A password is not sent: the client proves that it knows the password (SCRAM).

        Args:
            credentials: credentials that the gateway has received.
            again: whether to retry until the request timeout.

        Raises:
            NotIdentifiedError: the credentials belong to no known principal.
            TidelogError: this client's principal may not `impersonate`, or no node answers.
        """
        self._check_usable()
        if isinstance(credentials, Password):
            return await identify_by_password(partial(self._ask, again=again), credentials)
        return parse_identify_reply(await self._ask(pb.Identify(credentials=credentials), again=again))

    async def _ask(self, request: pb.Identify, *, again: bool) -> pb.IdentifyReply:
        make = partial(repeated, pb.Envelope(identify=request))
        if again:
            frame = await self._router.call_any(make, repeatable=True)
        else:
            frame = await self._router.at_any(lambda connection: self._router.call(connection, make()))
        return frame.envelope.identify_reply

    async def revision(self) -> bytes:
        """Return a value that is constant while no identity and no rule changes, for a client that may `impersonate`.

        Another node, or the same node after a restart, returns another value even without a change.
        """
        self._check_usable()
        envelope = pb.Envelope(identify=pb.Identify(only_revision=True))
        frame = await self._router.call_any(partial(repeated, envelope), repeatable=True)
        return frame.envelope.identify_reply.revision

    def for_caller(self, caller: Caller) -> Router:
        """Return the argument `router` for a `Client` that acts for a principal and uses this client's connections."""
        self._check_usable()
        return self._router.for_caller(caller)

    async def _change(self, change: pb.SecurityChange) -> pb.SecurityChangeReply:
        self._check_usable()
        envelope = pb.Envelope(security_change=change)
        frame = await self._router.call_any(partial(repeated, envelope), repeatable=False)
        return frame.envelope.security_change_reply

    async def _page(self, what: pb.SecurityList.What, after: str) -> pb.SecurityListReply:
        self._check_usable()
        envelope = pb.Envelope(security_list=pb.SecurityList(what=what, after=after))
        frame = await self._router.call_any(partial(repeated, envelope), repeatable=True)
        return frame.envelope.security_list_reply

    async def _pages(self, what: pb.SecurityList.What) -> AsyncIterator[pb.SecurityListReply]:
        after = ""
        while True:
            reply = await self._page(what, after)
            yield reply
            if not reply.last:
                return
            after = reply.last


def _number(numbers: Mapping[str, N], name: str) -> N:
    """Return the number of an operation or of a type of resource."""
    try:
        return numbers[name]
    except KeyError:
        raise InvalidRequestError(
            f"unknown operation or resource {name!r}; operations: {', '.join(OPERATIONS)}; "
            f"resources: {', '.join(RESOURCES)}"
        ) from None


def _key(key: pb.ApiKey) -> KeyInfo:
    return KeyInfo(key.key_id, key.principal, tuple(key.roles), key.created_us, key.expires_us or None, key.note)


def _user(user: pb.ScramUser) -> UserInfo:
    return UserInfo(user.name, tuple(user.roles), user.created_us)


def _rule(rule: pb.AccessRule) -> AccessRule:
    return AccessRule(
        rule.principal,
        tuple(_OPERATION_NAMES[operation] for operation in rule.operations),
        _RESOURCE_NAMES[rule.resource],
        rule.name,
        prefix=rule.prefix,
        deny=rule.deny,
        rule_id=rule.rule_id,
    )
