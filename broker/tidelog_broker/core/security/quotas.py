"""Who may have how much: quotas, and what they add up to for a principal or for an address.

A quota is about one subject: a principal by name, each principal with a role, each principal (`*`), each address of a
network, or whoever no narrower quota speaks of (`default`). Each limit is looked for by itself, from the narrowest
subject to the broadest, and the first quota that names it decides. Of several roles the largest limit counts, of
networks that contain an address the smallest network.

An IPv6 address counts as its /64, as whoever has one address has the others, too.
"""

from __future__ import annotations

import ipaddress
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
    """How much a caller may have; None: without bound."""

    produce_bytes: int | None = None
    """Bytes a second."""
    consume_bytes: int | None = None
    """Bytes a second."""
    requests: int | None = None
    """A second."""
    connections: int | None = None
    in_flight_bytes: int | None = None
    topics: int | None = None
    partitions: int | None = None
    groups: int | None = None

    @property
    def has_rates(self) -> bool:
        """Whether anything is bounded by time."""
        return any(bound is not None for bound in self[:3])


FIELDS: Final = Limits._fields
_EVERYBODYS: Final = frozenset({EVERYBODY, DEFAULT, f"{ADDRESS_PREFIX}0.0.0.0/0", f"{ADDRESS_PREFIX}::/0"})
_RATES: Final = ("produce_bytes", "consume_bytes", "requests", "in_flight_bytes")


class Quotas:
    """The quotas of the cluster, as far as `__meta` has been applied.

    Args:
        admins: principals that only a quota of their own name bounds, so that nobody locks everybody out.
    """

    def __init__(self, admins: Collection[str] = ()) -> None:
        self._admins = frozenset(admins)
        self.changes = 0
        """Rises with every change: limits that were found before it are to be found again."""
        self._by_id: dict[str, pb.Quota] = {}
        self._by_subject: dict[str, pb.Quota] = {}
        self._prefix_bits: list[tuple[int, int]] = []
        """Versions of IP and sizes of the networks that have quotas, the smallest networks first."""
        self._is_stale = False

    def put(self, quota: pb.Quota) -> None:
        """Let a quota hold, instead of the one that had its id."""
        self._by_id[quota.quota_id] = quota
        self._changed()

    def drop(self, quota_id: str) -> None:
        """Let a quota hold no longer; nothing happens where there is none."""
        if self._by_id.pop(quota_id, None) is not None:
            self._changed()

    def of_subject(self, subject: str) -> pb.Quota | None:
        """Return the quota of a subject, as `canonical` writes it; None when it has none."""
        self._freshen()
        return self._by_subject.get(subject)

    def of_principal(self, principal: str, roles: Iterable[str] = ()) -> Limits:
        """Return what holds for a principal with these roles."""
        if not self._by_id:
            return Limits()
        self._freshen()
        of_roles = [quota for role in roles if (quota := self._by_subject.get(ROLE_PREFIX + role)) is not None]
        if principal in self._admins:
            return self._found([self._by_subject.get(principal)])
        own, each = self._by_subject.get(principal), self._by_subject.get(EVERYBODY)
        return self._found([own], of_roles, [each], [self._by_subject.get(DEFAULT)])

    def is_admin(self, principal: str) -> bool:
        """Whether only a quota of its own name bounds a principal."""
        return principal in self._admins

    def of_address(self, address: str) -> Limits:
        """Return what holds for an address, as `counted_address` writes it."""
        if not self._by_id:
            return Limits()
        self._freshen()
        return self._found(*([quota] for quota in self._around(address)), [self._by_subject.get(DEFAULT)])

    def _around(self, address: str) -> Iterator[pb.Quota]:
        """Yield the quotas of the networks that an address is in, the smallest first."""
        if not self._prefix_bits or not address:
            return
        meant = ipaddress.ip_network(address)
        for version, bits in self._prefix_bits:
            if version == meant.version and bits <= meant.prefixlen:
                quota = self._by_subject.get(f"{ADDRESS_PREFIX}{meant.supernet(new_prefix=bits)}")
                if quota is not None:
                    yield quota

    def _found(self, *tiers: list[pb.Quota] | list[pb.Quota | None]) -> Limits:
        return Limits(*(_first(field, tiers) for field in FIELDS))

    def _changed(self) -> None:
        self.changes += 1
        self._is_stale = True

    def _freshen(self) -> None:
        """Sort the quotas by what is looked for; not with each that comes, as thousands come in a replay."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._by_subject = {quota.subject: quota for quota in self._by_id.values()}
        networks = map(_network_of, self._by_subject)
        sizes = {(network.version, network.prefixlen) for network in networks if network is not None}
        self._prefix_bits = sorted(sizes, key=lambda size: -size[1])


def _network_of(subject: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network that a quota is about; None for other subjects, and for what only a newer release knows."""
    try:
        return (
            ipaddress.ip_network(subject.removeprefix(ADDRESS_PREFIX)) if subject.startswith(ADDRESS_PREFIX) else None
        )
    except ValueError:
        return None


def _first(field: str, tiers: Iterable[list[pb.Quota] | list[pb.Quota | None]]) -> int | None:
    """Return what the narrowest quota that names a limit says of it."""
    for tier in tiers:
        named = [getattr(quota, field) for quota in tier if quota is not None and quota.HasField(field)]
        if named:
            return None if max(named) == UNLIMITED else max(named)
    return None


def canonical(subject: str, *, is_new: bool = True) -> str:
    """Return the one way to write a subject.

    Args:
        subject: a principal, `role:NAME`, `*`, `default` or `address:NETWORK`.
        is_new: whether it is to have a quota; False accepts names of principals that older releases took.

    Raises:
        ProtocolError: INVALID_REQUEST, it is none.
    """
    if subject.startswith(ADDRESS_PREFIX):
        text = subject.removeprefix(ADDRESS_PREFIX)
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"{text!r} is no network, like 10.0.0.0/8 or 2001:db8::/48: {error}"
            ) from None
        if isinstance(network, ipaddress.IPv6Network) and network.prefixlen > V6_PREFIX_BITS:
            raise ProtocolError(pb.INVALID_REQUEST, f"IPv6 addresses count by /{V6_PREFIX_BITS}: name one, or more")
        return f"{ADDRESS_PREFIX}{network}"
    if is_new and subject not in {EVERYBODY, DEFAULT}:
        check_principal(subject.removeprefix(ROLE_PREFIX))
    return subject


def check_quota(quota: pb.Quota, *, is_admin: bool) -> None:
    """Refuse a quota that says nothing that can be, or keeps an administrator out, who alone could take it back.

    Args:
        quota: what is to hold.
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
                f"{field} is at least {least}, as what is more is delayed and not refused; to keep somebody out deny "
                "him by a rule, revoke his keys, or allow him 0 connections",
            )
    if (is_admin or quota.subject in _EVERYBODYS) and quota.HasField("connections") and not quota.connections:
        raise ProtocolError(pb.INVALID_REQUEST, f"0 connections for {quota.subject!r} would lock everybody out")
    if not any(quota.HasField(field) for field in FIELDS):
        raise ProtocolError(pb.INVALID_REQUEST, "a quota names at least one limit; to end one, remove it")
    if is_address and any(quota.HasField(field) for field in ("topics", "partitions", "groups")):
        raise ProtocolError(pb.INVALID_REQUEST, "topics, partitions and groups are counted by principal alone")
