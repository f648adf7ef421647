"""Publishes that have their offsets and wait until enough replicas hold them.

One queue for each kind of acknowledgement, in the order of the offsets: what is complete is always at the head. A
retry waits in it as well, for the commit of its first attempt.

`acks=all` is about the replicas of the epoch that a batch lies in. While that is open, their acknowledgements tell.
Once it has ended nobody says any more what they hold: a batch that they were not known to hold by then, or that is sent
again later, is answered with what is true, STORED_ON_QUORUM. Rejected: to wait for the lacking replicas, which may be
gone for good and are the very reason why the epoch has ended.
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
"""Called once per batch with where it went, or why not, and whether it had been there before."""


class _Awaiting(NamedTuple):
    stored: StoredBatch
    duplicate: bool
    settle: Settle


class Waiting:
    """The publishes of one partition whose outcome is open."""

    def __init__(self) -> None:
        self._quorum: deque[_Awaiting] = deque()
        self._one: deque[_Awaiting] = deque()
        self._all: deque[_Awaiting] = deque()

    def __bool__(self) -> bool:
        return bool(self._quorum or self._one or self._all)

    @property
    def wants_all(self) -> bool:
        """Whether somebody waits for every replica."""
        return bool(self._all)

    def add(self, acks: pb.Acks, stored: StoredBatch, duplicate: bool, settle: Settle, *, epoch: int) -> None:
        """Let a batch wait that has its offsets. `epoch` is the open one, which a retry may lie before."""
        if acks == pb.ALL and stored.epoch != epoch:
            settle(_on_quorum(stored), False)
            return
        queue = self._one if acks == pb.ONE else self._all if acks == pb.ALL else self._quorum
        queue.append(_Awaiting(stored, duplicate, settle))

    def release(self, owner: Owner, high_watermark: int) -> None:
        """Settle what enough replicas hold now."""
        if self._quorum:
            _settle(self._quorum, high_watermark)
        if self._one:
            _settle(self._one, max(high_watermark, owner.held_by(owner.node_id)))
        if self._all:
            _settle(self._all, min(high_watermark, owner.held_by_all))

    def decided(self, end_offset: int, refusal: ProtocolError, *, held_by_all: int) -> None:
        """The epoch has ended: what lies before its end is stored for good, the rest is nowhere.

        Every replica of it is known to hold what lies before `held_by_all`.
        """
        for waiting in (self._quorum, self._one, self._all):
            while waiting:
                stored, duplicate, settle = waiting.popleft()
                if stored.end_offset > end_offset:
                    settle(refusal, False)
                elif waiting is self._all and stored.end_offset > held_by_all:
                    settle(_on_quorum(stored), False)
                else:
                    settle(stored, duplicate)

    def fail(self, error: ProtocolError) -> None:
        """Nobody will ever know here."""
        for waiting in (self._quorum, self._one, self._all):
            while waiting:
                waiting.popleft().settle(error, False)


def _settle(waiting: deque[_Awaiting], end_offset: int) -> None:
    while waiting and waiting[0].stored.end_offset <= end_offset:
        stored, duplicate, settle = waiting.popleft()
        settle(stored, duplicate)


def _on_quorum(stored: StoredBatch) -> ProtocolError:
    return ProtocolError(
        pb.STORED_ON_QUORUM,
        f"stored at offset {stored.base_offset} and committed, but its epoch {stored.epoch} has ended, and whether all "
        "of its replicas hold it is not known: it must not be sent again",
    )
