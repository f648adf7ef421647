"""Fence of the active epoch: the durable promises and accepts of a replica, i.e. a single-decree Paxos acceptor.

The fence also stores the delete offset of the epoch (`deletion`), until a ballot is promised.

Every change is returned as a journal entry, and may be announced to other nodes only once that entry is durable. In
memory the change applies immediately, so that nothing is accepted or acknowledged in conflict with a promise that is
being written.

In an epoch whose engine loses its records in a restart, the fence also has a *ceiling*, which is at least the end of
all records that this replica has acknowledged (ADR 0189). An append beyond the ceiling raises it by a larger step than
the append needs, so that most appends need no journal entry.

Ballots of round 0 are reserved for the owner of the epoch, which may propose one value without sealing (a planned
roll-over). Such a ballot is accepted only if no other one is promised.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.replication.paxos import ballot_key
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

RESERVED_ROUND = 0
CEILING_STEP_MIN: Final = 64 * 1024
CEILING_STEP_MAX: Final = 16 * 1024 * 1024
"""Bounds of the number of records by which the ceiling exceeds an append that raises it. Between them it equals the
number of records of the epoch, so that the ceiling doubles."""
_NO_CEILING: Final = 2**64


class Fence:
    """The fence of one epoch on this node; `entry` is its state as stored in the journal."""

    def __init__(
        self,
        key: PartitionKey,
        descriptor: pb.EpochDescriptor,
        stored: pb.FenceEntry | None = None,
        *,
        is_volatile: bool = False,
    ) -> None:
        """Create a fence.

        Args:
            stored: the journaled state of the fence; None for a fence without promises.
            is_volatile: whether a restart loses the epoch's records, so that the fence has a ceiling.
        """
        self.key = key
        self.descriptor = descriptor
        self.entry = pb.FenceEntry(topic_id=key[0], partition=key[1], epoch=descriptor.epoch, descriptor=descriptor)
        if stored is not None:
            assert stored.epoch == descriptor.epoch
            self.entry.CopyFrom(stored)
            self.entry.descriptor.CopyFrom(descriptor)
        self.ceiling = self.entry.ceiling if is_volatile else _NO_CEILING
        """Appends that end above it need `raise_ceiling` before. An attribute, because each append compares it."""

    @property
    def promised(self) -> pb.Ballot | None:
        """The highest promised ballot; None before the first promise."""
        return self.entry.promised if self.entry.HasField("promised") else None

    @property
    def accepted(self) -> pb.Ballot | None:
        """The ballot of the accepted value; None before a value is accepted."""
        return self.entry.accepted if self.entry.HasField("accepted") else None

    def is_promised(self, ballot: pb.Ballot) -> bool:
        """Return whether exactly this ballot is promised."""
        return self.promised is not None and ballot_key(self.promised) == ballot_key(ballot)

    def promise(self, ballot: pb.Ballot) -> pb.FenceEntry | None:
        """Promise a ballot and return the journal entry; None if a higher one is promised."""
        if self.promised is not None and ballot_key(ballot) < ballot_key(self.promised):
            return None
        self.entry.promised.CopyFrom(ballot)
        return self._copy()

    def may_accept(self, ballot: pb.Ballot, value: bytes) -> bool:
        """Return whether this replica may accept a value under this ballot: no higher ballot is promised.

        The owner's reserved ballot is acceptable only if no other ballot is promised. A ballot has only one value.
        """
        promised = self.promised
        if ballot.round == RESERVED_ROUND:
            owner = (self.descriptor.owner, self.descriptor.owner_incarnation)
            if (ballot.node_id, ballot.incarnation) != owner or not (promised is None or self.is_promised(ballot)):
                return False
        elif promised is not None and ballot_key(ballot) < ballot_key(promised):
            return False
        same_ballot = self.accepted is not None and ballot_key(self.accepted) == ballot_key(ballot)
        return not same_ballot or self.entry.accepted_value == value

    def accept(self, ballot: pb.Ballot, value: bytes) -> pb.FenceEntry:
        """Accept a value and return the journal entry; this promises the value's ballot, too."""
        assert self.may_accept(ballot, value)
        self.entry.promised.CopyFrom(ballot)
        self.entry.accepted.CopyFrom(ballot)
        self.entry.accepted_value = value
        return self._copy()

    def delete_below(self, offset: int) -> pb.FenceEntry | None:
        """Raise the delete offset and return the journal entry; None if that or a higher one is stored.

        Also None if a ballot is promised, because the epoch is ending.
        """
        if self.promised is not None or offset <= self.entry.deleting_below:
            return None
        self.entry.deleting_below = offset
        return self._copy()

    def raise_ceiling(self, end_offset: int) -> pb.FenceEntry:
        """Raise the ceiling above the end of an append; return the journal entry.

        The entry must be durable before the append is acknowledged.
        """
        step = min(max(end_offset - self.descriptor.start_offset, CEILING_STEP_MIN), CEILING_STEP_MAX)
        self.ceiling = self.entry.ceiling = end_offset + step
        return self._copy()

    def opened(self) -> pb.FenceEntry:
        """Return the first entry of a fence, which contains the epoch's descriptor."""
        return self._copy()

    def dropped(self) -> pb.FenceEntry:
        """Return the entry that removes this fence; the epoch's decision must be journaled before."""
        return pb.FenceEntry(topic_id=self.key[0], partition=self.key[1], epoch=self.descriptor.epoch, dropped=True)

    def _copy(self) -> pb.FenceEntry:
        entry = pb.FenceEntry()
        entry.CopyFrom(self.entry)
        return entry
