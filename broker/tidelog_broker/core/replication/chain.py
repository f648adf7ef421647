"""The chain of epochs of one partition: a genesis descriptor, then one decision after the other.

A decision V_e fixes the end of epoch e and names epoch e + 1; it carries the hash of V_(e-1), so a chain
can only grow. The epoch number is the chain's version: two chains of one partition are prefixes of each
other, or one of them is damaged. Decisions are kept as the very bytes that were decided, because protobuf
does not promise the same bytes from the same fields twice.

A decision may also say what compaction has made of earlier epochs: how a copy of each is to end from then on. A copy
that ends as was decided at first, or as an earlier compaction left it, holds no less and counts as whole; every copy
comes to be what the newest one says (see docs/adr/0074).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb


class ChainError(Exception):
    """A decision does not continue the chain: the journal is damaged or a peer is wrong."""


class DecidedCompaction(NamedTuple):
    """What the decision about the end of epoch `at` says of compacting an earlier one."""

    at: int
    terms: pb.Compaction


def decision_hash(decision: bytes) -> bytes:
    """Return the 32 bytes by which the next decision names this one."""
    return hashlib.sha256(decision).digest()


class EpochChain:
    """Genesis and decisions of one partition, checked as they are added."""

    def __init__(self, genesis: pb.EpochDescriptor) -> None:
        self.genesis = genesis
        self.decisions: list[bytes] = []
        self.active = genesis
        """The descriptor of the newest epoch, whose end is not decided."""
        self.first_unsafe: int | None = None
        """The first epoch whose end an operator had decided without a quorum: others may know another end of it."""
        self.compactions: dict[int, list[DecidedCompaction]] = {}
        """What was decided about compacting sealed epochs, by epoch, the newest last."""
        self.deleted_below = 0
        """No reader sees records below it any more, as the newest decision says."""

    @property
    def previous_hash(self) -> bytes:
        """The hash that the next decision must carry."""
        return decision_hash(self.decisions[-1]) if self.decisions else b""

    def decision(self, epoch: int) -> pb.EpochDecision:
        """Return the decision about a decided epoch."""
        return pb.EpochDecision.FromString(self.decisions[epoch - self.genesis.epoch])

    def descriptor(self, epoch: int) -> pb.EpochDescriptor:
        """Return the descriptor of an epoch of the chain."""
        if epoch == self.active.epoch:
            return self.active
        return self.genesis if epoch == self.genesis.epoch else self.decision(epoch - 1).next

    def extend(self, decision: bytes) -> pb.EpochDecision:
        """Add the decision about the active epoch; its successor becomes the active one.

        Raises:
            ChainError: when it is about another epoch, names another past, or ends before it begins.
        """
        value = pb.EpochDecision.FromString(decision)
        if value.epoch != self.active.epoch:
            raise ChainError(f"a decision about epoch {value.epoch} while epoch {self.active.epoch} is active")
        if value.previous_hash != self.previous_hash:
            raise ChainError(f"the decision about epoch {value.epoch} names another past")
        if value.end_offset < self.active.start_offset:
            raise ChainError(f"epoch {value.epoch} ends at {value.end_offset}, before its start")
        if value.deleted_below > value.end_offset:
            raise ChainError(f"epoch {value.epoch} ends at {value.end_offset}, in front of {value.deleted_below}")
        if value.next.epoch != value.epoch + 1 or value.next.start_offset != value.end_offset:
            raise ChainError(
                f"epoch {value.epoch} is followed by epoch {value.next.epoch} at {value.next.start_offset}"
            )
        for compaction in value.compactions:
            if not self.genesis.epoch <= compaction.epoch < value.epoch or compaction.horizon > value.end_offset:
                raise ChainError(f"the decision about epoch {value.epoch} compacts epoch {compaction.epoch}")
        self.decisions.append(decision)
        self.active = value.next
        for compaction in value.compactions:
            self.compactions.setdefault(compaction.epoch, []).append(DecidedCompaction(value.epoch, compaction))
        self.deleted_below = value.deleted_below
        if value.unsafe and self.first_unsafe is None:
            self.first_unsafe = value.epoch
        return value
