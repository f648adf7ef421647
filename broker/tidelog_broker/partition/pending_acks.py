"""Publishes with offsets that wait until enough replicas hold them.

There is one queue per kind of acknowledgement, in offset order, so complete publishes are always at the head. A retry
waits in the same queue, for the commit of its first attempt.

`acks=all` concerns the replicas of the batch's epoch. While the epoch is open, their acknowledgements are known. After
its end they are not reported any more: a batch that not all replicas were known to hold, or that is retried later, is
answered with STORED_ON_QUORUM. Rejected: waiting for the missing replicas, which may have failed permanently and caused
the end of the epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog_broker.core.replication.epoch_writer import Owner
from tidelog_broker.core.replication.producers import StoredBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

Settle = Callable[[StoredBatch | ProtocolError, bool], None]
"""Called once per batch with the stored position or the error, and whether the batch is a duplicate."""


class _Awaiting(NamedTuple):
    stored: StoredBatch
    duplicate: bool
    settle: Settle


class PendingAcks:
    """The publishes of one partition with a pending outcome, by the kind of acknowledgement that they wait for."""

    def __init__(self) -> None:
        self.quorum: deque[_Awaiting] = deque()
        self.one: deque[_Awaiting] = deque()
        self.all: deque[_Awaiting] = deque()

    def __bool__(self) -> bool:
        return bool(self.quorum or self.one or self.all)

    def add(self, acks: pb.Acks, stored: StoredBatch, duplicate: bool, settle: Settle, *, epoch: int) -> None:
        """Add a batch with offsets. `epoch` is the open epoch; a retry may be in an earlier one."""
        if acks == pb.ALL and stored.epoch != epoch:
            settle(_on_quorum(stored), False)
            return
        queue = self.one if acks == pb.ONE else self.all if acks == pb.ALL else self.quorum
        queue.append(_Awaiting(stored, duplicate, settle))

    def release(self, owner: Owner, high_watermark: int) -> None:
        """Answer publishes that enough replicas hold."""
        waiting = self.quorum
        while waiting and waiting[0].stored.end_offset <= high_watermark:
            stored, duplicate, settle = waiting.popleft()
            settle(stored, duplicate)
        if self.one:
            _settle(self.one, max(high_watermark, owner.held_by(owner.node_id)))
        if self.all:
            _settle(self.all, min(high_watermark, owner.held_by_all))

    def decided(self, end_offset: int, refusal: ProtocolError, *, held_by_all: int) -> None:
        """Answer all publishes: the epoch has ended; records before its end are stored, later ones are not.

        Every replica is known to hold what is before `held_by_all`.
        """
        for waiting in (self.quorum, self.one, self.all):
            while waiting:
                stored, duplicate, settle = waiting.popleft()
                if stored.end_offset > end_offset:
                    settle(refusal, False)
                elif waiting is self.all and stored.end_offset > held_by_all:
                    settle(_on_quorum(stored), False)
                else:
                    settle(stored, duplicate)

    def fail(self, error: ProtocolError) -> None:
        """Fail all publishes: their outcome stays unknown."""
        for waiting in (self.quorum, self.one, self.all):
            while waiting:
                waiting.popleft().settle(error, False)


def _settle(waiting: deque[_Awaiting], end_offset: int) -> None:
    while waiting and waiting[0].stored.end_offset <= end_offset:
        stored, duplicate, settle = waiting.popleft()
        settle(stored, duplicate)


def _on_quorum(stored: StoredBatch) -> ProtocolError:
    return ProtocolError(
        pb.STORED_ON_QUORUM,
        f"stored at offset {stored.base_offset} and committed, but epoch {stored.epoch} has ended, and whether all "
        "of its replicas hold it is unknown; do not send it again",
    )
