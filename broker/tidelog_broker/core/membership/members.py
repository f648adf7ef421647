"""Who is in the cluster, as far as this node has heard: member records and the table of them.

Of two records of one node the later one is the one with the greater (incarnation, refutation, state), whoever says it
and in whatever order they arrive. Records therefore form a lattice: merging is idempotent and commutative, and tables
that have seen the same records are equal. The incarnation is the process's durable one (a new process outranks
everything said of the old); the refutation number is raised by the member alone, to contradict a suspicion; within
both, worse news wins. Rejected: SWIM's rule that death is final for a process, because a healed partition could then
not merge without restarts.
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
    """From good news to bad; the numbers are those of the protocol."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3
    LEFT = 4


class Address(NamedTuple):
    """A host and a port. Gossip addresses hold IP addresses, never names: sending must not wait for a resolver."""

    host: str
    port: int


class Rank(NamedTuple):
    """What decides which of two records of one node is the later one."""

    incarnation: int
    refutation: int
    state: MemberState


@dataclass(frozen=True, slots=True)
class Member:
    """One node as it described itself, and how it is.

    Args:
        node_id: the node's durable name.
        incarnation: which process of that node (u64); a higher one proves that the older process is dead.
        host, port: where its native protocol listens.
        gossip: where its gossip listens.
        zone: where its machine stands.
        roles: what it does.
        weight: its share in placements, 1 to 10,000.
        refutation: how often this process had to contradict a suspicion (u32).
        state: what is known of it.
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
        """What decides whether this record is later than another one of the same node."""
        return Rank(self.incarnation, self.refutation, self.state)

    @property
    def is_live(self) -> bool:
        """Alive or only suspected: not known to be gone."""
        return self.state <= MemberState.SUSPECT


class Members(Mapping[str, Member]):
    """The table, by node id, the own node included. Readers use it as a mapping; only the protocol merges.

    Args:
        members_max: entries; past it those that are gone make room, left ones first, the longest gone first.
        forgotten: is called with the node id of each that made room.
    """

    def __init__(self, members_max: int, forgotten: Callable[[str], None] = lambda _: None) -> None:
        assert members_max >= 1
        self.live_count = 0
        self.digest = 0
        """A sum over the live members' ranks: equal digests mean equal live members."""
        self.version = 0
        """Rises with every change."""
        self.refused_full = 0
        """Newcomers that found no room."""
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
        """Tell whether a node is known and not known to be dead or to have left; a suspected one counts as alive."""
        member = self._table.get(node_id)
        return member is not None and member.is_live

    def live(self) -> list[Member]:
        """Return those that are alive or suspected, the own node included."""
        return [member for member in self._table.values() if member.is_live]

    def merge(self, member: Member) -> bool:
        """Take a record if it is later than what is known. Return whether it was taken."""
        known = self._table.get(member.node_id)
        if known is not None and member.rank <= known.rank:
            return False
        if known is None and len(self._table) >= self._members_max and not self._make_room_for(member):
            return False
        if known is not None:
            self._count(known, -1)
            if known.is_live != member.is_live:
                del self._table[member.node_id]  # so that the gone stand in the order of their going
        self._table[member.node_id] = member
        self._count(member, +1)
        self.version += 1
        return True

    def _make_room_for(self, member: Member) -> bool:
        if not member.is_live:
            return False  # somebody that is gone and unknown is no news
        for state in (MemberState.LEFT, MemberState.DEAD):
            for node_id, other in self._table.items():
                if other.state is state:
                    del self._table[node_id]
                    self._forgotten(node_id)
                    return True
        self.refused_full += 1
        return False

    def _count(self, member: Member, sign: int) -> None:
        """Add a live member to the digest or take it out. The gone do not count: tables may forget them."""
        if member.is_live:
            text = f"{member.incarnation}/{member.refutation}/{member.state:d}/{member.node_id}"
            term = int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "little")
            self.live_count += sign
            self.digest = (self.digest + sign * term) & _DIGEST_MASK
