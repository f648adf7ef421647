"""The chain of epochs of one partition: a genesis descriptor, followed by decisions.

Decision V_e fixes the end of epoch e, names epoch e + 1 and contains the hash of V_(e-1), so a chain can only be
extended. The epoch number is the version of the chain: of two chains of one partition one is a prefix of the other,
unless one is damaged. Decisions are kept as the decided bytes, because protobuf serialization is not canonical.

A decision may also record the compaction of earlier epochs, that is, the digest at the end of each compacted copy. A
copy that ends in the digest decided first, or in that of an earlier compaction, is complete, too; every copy is
eventually compacted to the newest version (docs/adr/0074).

The decision about an epoch whose copies were lost in restarts also has the offset up to which records are lost. The
next owner fills these offsets with batches without records, so that no other record gets them (docs/adr/0189).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb


class ChainError(Exception):
    """Raised for a decision that does not continue the chain: the journal is damaged, or a peer has another chain."""


class DecidedCompaction(NamedTuple):
    """A decided compaction of a sealed epoch.

    Attributes:
        at: the epoch whose decision contains it.
        terms: its bounds, and the digest of its result.
    """

    at: int
    terms: pb.Compaction


class LostRecords(NamedTuple):
    """A range of offsets whose records were lost, as decided."""

    start: int
    end: int


def decision_hash(decision: bytes) -> bytes:
    """Return the 32-byte hash by which the next decision refers to this one."""
    return hashlib.sha256(decision).digest()


class EpochChain:
    """Genesis and decisions of one partition; decisions are validated as they are added."""

    def __init__(self, genesis: pb.EpochDescriptor) -> None:
        self.genesis = genesis
        self.decisions: list[bytes] = []
        self.active = genesis
        """Descriptor of the newest epoch, whose end is not decided."""
        self.first_unsafe: int | None = None
        """First epoch whose end was decided without a quorum, so that other nodes may know another end; None if all
        ends were decided by quorums."""
        self.compactions: dict[int, list[DecidedCompaction]] = {}
        """Decided compactions by sealed epoch, newest last."""
        self.deleted_below = 0
        """Delete offset of the newest decision: records below it are not visible to readers."""
        self.lost: tuple[LostRecords, ...] = ()
        """Ranges of lost records, disjoint and ascending."""
        self.lost_until = 0
        """Records from the newest decision's end offset up to this offset are lost; 0 if no record is."""

    @property
    def previous_hash(self) -> bytes:
        """The hash that the next decision must contain."""
        return decision_hash(self.decisions[-1]) if self.decisions else b""

    def decision(self, epoch: int) -> pb.EpochDecision:
        """Return the decision about an epoch."""
        return pb.EpochDecision.FromString(self.decisions[epoch - self.genesis.epoch])

    def descriptor(self, epoch: int) -> pb.EpochDescriptor:
        """Return the descriptor of an epoch of the chain."""
        if epoch == self.active.epoch:
            return self.active
        return self.genesis if epoch == self.genesis.epoch else self.decision(epoch - 1).next

    def extend(self, decision: bytes) -> pb.EpochDecision:
        """Add the decision about the active epoch and return it parsed; the epoch's successor becomes the active one.

        Raises:
            ChainError: the decision is about another epoch, refers to another chain, or has inconsistent offsets.
        """
        value = pb.EpochDecision.FromString(decision)
        if value.epoch != self.active.epoch:
            raise ChainError(
                f"expected a decision about epoch {self.active.epoch}, the active one, got epoch {value.epoch}"
            )
        if value.previous_hash != self.previous_hash:
            raise ChainError(
                f"the decision about epoch {value.epoch} belongs to another chain: it follows the decision with hash "
                f"{value.previous_hash.hex() or 'none'}, expected {self.previous_hash.hex() or 'none'}"
            )
        if value.end_offset < self.active.start_offset:
            raise ChainError(
                f"epoch {value.epoch} starts at offset {self.active.start_offset} and must not end before it, got "
                f"{value.end_offset}"
            )
        if value.deleted_below > value.end_offset:
            raise ChainError(
                f"the decision about epoch {value.epoch} deletes records below offset {value.deleted_below}, which "
                f"must not be higher than the end of the epoch, {value.end_offset}"
            )
        if 0 < value.lost_until <= value.end_offset:
            raise ChainError(
                f"lost_until of epoch {value.epoch} must be 0 or higher than the end of the epoch, {value.end_offset}, "
                f"got {value.lost_until}"
            )
        if value.next.epoch != value.epoch + 1 or value.next.start_offset != value.end_offset:
            raise ChainError(
                f"epoch {value.epoch} must be followed by epoch {value.epoch + 1} at offset {value.end_offset}, got "
                f"epoch {value.next.epoch} at {value.next.start_offset}"
            )
        for compaction in value.compactions:
            if not self.genesis.epoch <= compaction.epoch < value.epoch or compaction.horizon > value.end_offset:
                raise ChainError(
                    f"the decision about epoch {value.epoch} compacts epoch {compaction.epoch} up to offset "
                    f"{compaction.horizon}; the epoch must be {self.genesis.epoch} to {value.epoch - 1}, and the "
                    f"offset at most {value.end_offset}"
                )
        self.decisions.append(decision)
        self.active = value.next
        for compaction in value.compactions:
            self.compactions.setdefault(compaction.epoch, []).append(DecidedCompaction(value.epoch, compaction))
        self.deleted_below = value.deleted_below
        self.lost_until = value.lost_until
        if value.lost_until:
            self._note_lost(LostRecords(value.end_offset, value.lost_until))
        if value.unsafe and self.first_unsafe is None:
            self.first_unsafe = value.epoch
        return value

    def _note_lost(self, lost: LostRecords) -> None:
        """Add a range of lost records, or extend the last range.

        A decision repeats the offsets of an earlier range that the owner of its epoch had not filled yet.
        """
        last = self.lost[-1] if self.lost else None
        if last is not None and last.start <= lost.start <= last.end:
            self.lost = (*self.lost[:-1], LostRecords(last.start, max(last.end, lost.end)))
        else:
            self.lost = (*self.lost, lost)
