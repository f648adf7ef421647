"""Membership table: the latest known record of each member.

Of two records of one node, the later is the one with the greater (incarnation, refutation, state), regardless of its
source and of the order of arrival. Records form a lattice: merging is idempotent and commutative, and tables that have
merged the same records are equal. The incarnation is durable and identifies a process, so a new process outranks all
records of earlier ones. Only the member itself raises its refutation number, to refute a suspicion or to leave. Within
both, the worse state wins. Rejected: SWIM's rule that death is final for a process, because the sides of a healed
network partition could then not merge without restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from tidelog_broker.core.placement.placement import BOTH_ROLES, WEIGHT_ORDINARY, Role

DIGEST_BYTES: Final = 8
_DIGEST_MASK: Final = 2 ** (8 * DIGEST_BYTES) - 1


class MemberState(IntEnum):
    """States from best to worst, with their numbers in the protocol."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3
    LEFT = 4


class Address(NamedTuple):
    """A host and a port. Gossip addresses are IP addresses, because sending must not wait for name resolution."""

    host: str
    port: int


class Rank(NamedTuple):
    """Determines which of two records of one node is later."""

    incarnation: int
    refutation: int
    state: MemberState


@dataclass(frozen=True, slots=True)
class Member:
    """One node as it described itself, and its state.

    Args:
        incarnation: identifies the process (u64); a higher value proves that the earlier process is dead.
        gossip: listening address of gossip.
        weight: share of partition copies, 1 to 10,000.
        refutation: incremented when this process refutes a suspicion, and when it leaves (u32).
    """

    node_id: str
    incarnation: int
    host: str
    port: int
    gossip: Address
    zone: str = "default"
    roles: Role = BOTH_ROLES
    weight: int = WEIGHT_ORDINARY
    refutation: int = 0
    state: MemberState = MemberState.ALIVE

    @property
    def rank(self) -> Rank:
        """Orders the records of one node."""
        return Rank(self.incarnation, self.refutation, self.state)

    @property
    def is_live(self) -> bool:
        """Whether the member is alive or suspected."""
        return self.state <= MemberState.SUSPECT


class Members(Mapping[str, Member]):
    """The membership table by node id, including the local node. Only the protocol modifies it.

    Args:
        members_max: maximum number of entries. A new live member evicts the one that left first or, if no member has
            left, the one that died first.
        forgotten: called with the node id of each evicted member.
    """

    def __init__(self, members_max: int, forgotten: Callable[[str], None] = lambda _: None) -> None:
        assert members_max >= 1
        self.live_count = 0
        self.digest = 0
        """Sum of a hash of each live member's id and rank: equal digests mean equal live members."""
        self.version = 0
        """Incremented by every change."""
        self.refused_full = 0
        """Number of new members rejected because the table was full."""
        self._members_max = members_max
        self._forgotten = forgotten
        self._table: dict[str, Member] = {}

    def __getitem__(self, node_id: str) -> Member:
        return self._table[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def alive(self, node_id: str) -> bool:
        """Return whether a node is known and has neither died nor left; a suspected node counts as alive."""
        member = self._table.get(node_id)
        return member is not None and member.is_live

    def live(self) -> list[Member]:
        """Return the members that are alive or suspected, including the local node."""
        return [member for member in self._table.values() if member.is_live]

    def merge(self, member: Member) -> bool:
        """Merge a record if it is later than the known one and the table has room. Return whether it was merged."""
        known = self._table.get(member.node_id)
        if known is not None and member.rank <= known.rank:
            return False
        if known is None and len(self._table) >= self._members_max and not self._make_room_for(member):
            return False
        if known is not None:
            self._count(known, -1)
            if known.is_live != member.is_live:
                del self._table[member.node_id]  # Keep the members that left or died in the order in which they did.
        self._table[member.node_id] = member
        self._count(member, +1)
        self.version += 1
        return True

    def _make_room_for(self, member: Member) -> bool:
        if not member.is_live:
            return False  # An unknown member that left or died is not stored.
        for state in (MemberState.LEFT, MemberState.DEAD):
            for node_id, other in self._table.items():
                if other.state is state:
                    del self._table[node_id]
                    self._forgotten(node_id)
                    return True
        self.refused_full += 1
        return False

    def _count(self, member: Member, sign: int) -> None:
        """Add a live member to the digest or remove it. Others are not counted, because tables may evict them."""
        if member.is_live:
            text = f"{member.incarnation}/{member.refutation}/{member.state:d}/{member.node_id}"
            term = int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "little")
            self.live_count += sign
            self.digest = (self.digest + sign * term) & _DIGEST_MASK
