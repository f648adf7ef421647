"""Quotas, and the limits that they set for a principal or an address.

The subject of a quota is a principal, each principal with a role, each principal (`*`), each address of a network, or
everything without a more specific quota (`default`). Each limit is resolved separately, from the most specific subject
to the least specific one, and the first quota that sets it applies. Of several roles the largest limit applies, of
nested networks the smallest network.

An IPv6 address is represented by its /64, because a client can use any address in its /64.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from tidelog_broker.core.security.permissions import EVERYBODY, ROLE_PREFIX, check_principal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import V6_PREFIX_BITS
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import QUOTA_BYTES_MIN, UNLIMITED

ADDRESS_PREFIX: Final = "address:"
DEFAULT: Final = "default"


class Limits(NamedTuple):
    """The limits of a principal or an address; None: unlimited."""

    produce_bytes: int | None = None
    """Bytes per second."""
    consume_bytes: int | None = None
    """Bytes per second."""
    requests: int | None = None
    """Requests per second."""
    connections: int | None = None
    in_flight_bytes: int | None = None
    topics: int | None = None
    partitions: int | None = None
    groups: int | None = None

    @property
    def has_rates(self) -> bool:
        """Whether a rate is limited."""
        return any(bound is not None for bound in self[:3])


FIELDS: Final = Limits._fields
_EVERYBODYS: Final = frozenset({EVERYBODY, DEFAULT, f"{ADDRESS_PREFIX}0.0.0.0/0", f"{ADDRESS_PREFIX}::/0"})
_RATES: Final = ("produce_bytes", "consume_bytes", "requests", "in_flight_bytes")


class Quotas:
    """Resolves the limits that the cluster's quotas set, up to the applied position of `__meta`.

    Args:
        admins: principals to which only quotas of their own name apply, so that quotas cannot lock all users out.
    """

    def __init__(self, admins: Collection[str] = ()) -> None:
        self._admins = frozenset(admins)
        self.changes = 0
        """Incremented by every change, which invalidates limits resolved before."""
        self._by_id: dict[str, pb.Quota] = {}
        self._by_subject: dict[str, pb.Quota] = {}
        self._prefix_bits: list[tuple[int, int]] = []
        """IP version and prefix length of the networks with quotas, longest prefix first."""
        self._is_stale = False

    def put(self, quota: pb.Quota) -> None:
        """Add a quota, replacing the one with the same id."""
        self._by_id[quota.quota_id] = quota
        self._changed()

    def drop(self, quota_id: str) -> None:
        """Remove a quota, if it exists."""
        if self._by_id.pop(quota_id, None) is not None:
            self._changed()

    def of_subject(self, subject: str) -> pb.Quota | None:
        """Return the quota of a subject that `canonical` has returned; None if the subject has no quota."""
        self._freshen()
        return self._by_subject.get(subject)

    def of_principal(self, principal: str, roles: Iterable[str] = ()) -> Limits:
        """Return the limits of a principal with these roles."""
        if not self._by_id:
            return Limits()
        self._freshen()
        of_roles = [quota for role in roles if (quota := self._by_subject.get(ROLE_PREFIX + role)) is not None]
        if principal in self._admins:
            return self._limits_from([self._by_subject.get(principal)])
        own, each = self._by_subject.get(principal), self._by_subject.get(EVERYBODY)
        return self._limits_from([own], of_roles, [each], [self._by_subject.get(DEFAULT)])

    def is_admin(self, principal: str) -> bool:
        """Return whether only quotas of its own name apply to a principal."""
        return principal in self._admins

    def of_address(self, address: str) -> Limits:
        """Return the limits of an address in the form of `counted_address`."""
        if not self._by_id:
            return Limits()
        self._freshen()
        return self._limits_from(*([quota] for quota in self._around(address)), [self._by_subject.get(DEFAULT)])

    def _around(self, address: str) -> Iterator[pb.Quota]:
        """Yield the quotas of the networks that contain an address, longest prefix first."""
        if not self._prefix_bits or not address:
            return
        meant = ipaddress.ip_network(address)
        for version, bits in self._prefix_bits:
            if version == meant.version and bits <= meant.prefixlen:
                quota = self._by_subject.get(f"{ADDRESS_PREFIX}{meant.supernet(new_prefix=bits)}")
                if quota is not None:
                    yield quota

    def _limits_from(self, *tiers: list[pb.Quota] | list[pb.Quota | None]) -> Limits:
        return Limits(*(_first(field, tiers) for field in FIELDS))

    def _changed(self) -> None:
        self.changes += 1
        self._is_stale = True

    def _freshen(self) -> None:
        """Rebuild the lookup tables if quotas changed; deferred, because a replay applies thousands."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._by_subject = {quota.subject: quota for quota in self._by_id.values()}
        networks = map(_network_of, self._by_subject)
        sizes = {(network.version, network.prefixlen) for network in networks if network is not None}
        self._prefix_bits = sorted(sizes, key=lambda size: -size[1])


def _network_of(subject: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network in a subject; None for other subjects, and for networks that this version cannot parse."""
    try:
        return (
            ipaddress.ip_network(subject.removeprefix(ADDRESS_PREFIX)) if subject.startswith(ADDRESS_PREFIX) else None
        )
    except ValueError:
        return None


def _first(field: str, tiers: Iterable[list[pb.Quota] | list[pb.Quota | None]]) -> int | None:
    """Return the highest limit of the first tier in which a quota sets this field.

    None, no limit, if no quota sets it or one of that tier is `UNLIMITED`.

    Args:
        field: the name of the field.
        tiers: lists of quotas, the most specific list first.
    """
    for tier in tiers:
        named = [getattr(quota, field) for quota in tier if quota is not None and quota.HasField(field)]
        if named:
            return None if max(named) == UNLIMITED else max(named)
    return None


def canonical(subject: str, *, is_new: bool = True) -> str:
    """Return the canonical form of a subject.

    Args:
        subject: a principal, `role:NAME`, `*`, `default` or `address:NETWORK`.
        is_new: whether a quota is being created; False accepts names of principals that earlier releases allowed.

    Raises:
        ProtocolError: INVALID_REQUEST if the subject is invalid.
    """
    if subject.startswith(ADDRESS_PREFIX):
        text = subject.removeprefix(ADDRESS_PREFIX)
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{text!r} is not a network ({error}); write it like 10.0.0.0/8 or 2001:db8::/48",
            ) from None
        if isinstance(network, ipaddress.IPv6Network) and network.prefixlen > V6_PREFIX_BITS:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"quotas count IPv6 addresses by /{V6_PREFIX_BITS} network, so the prefix of {text!r} must have at "
                f"most {V6_PREFIX_BITS} bits, got {network.prefixlen}",
            )
        return f"{ADDRESS_PREFIX}{network}"
    if is_new and subject not in {EVERYBODY, DEFAULT}:
        check_principal(subject.removeprefix(ROLE_PREFIX))
    return subject


def check_quota(quota: pb.Quota, *, is_admin: bool) -> None:
    """Refuse an invalid quota, or one that locks out an administrator.

    Args:
        is_admin: whether its subject is an administrator, see `Quotas.is_admin`.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    is_address = quota.subject.startswith(ADDRESS_PREFIX)
    for field in _RATES:
        least = 1 if field == "requests" else QUOTA_BYTES_MIN
        if quota.HasField(field) and getattr(quota, field) < least:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{field} must be >= {least}, got {getattr(quota, field)}; this limit delays requests and never "
                "refuses them. To lock a principal out, deny access by a rule, revoke its keys, or set connections to "
                "0",
            )
    if (is_admin or quota.subject in _EVERYBODYS) and quota.HasField("connections") and not quota.connections:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"connections must be >= 1 for {quota.subject!r}, got 0: 0 would lock "
            f"{'the administrator' if is_admin else 'every caller'} out",
        )
    if not any(quota.HasField(field) for field in FIELDS):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a quota must set at least one limit, got none; to remove the quota of {quota.subject!r}, use: tidelog "
            f"quota remove {shlex.quote(quota.subject)}",
        )
    if is_address and any(quota.HasField(field) for field in ("topics", "partitions", "groups")):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"topics, partitions and groups cannot be limited for {quota.subject!r}, because they are counted by "
            "principal: limit them for a principal, a role, * or default",
        )
