"""Publishes that have their offsets and wait until enough replicas hold them.

One queue for each kind of acknowledgement, in the order of the offsets: what is complete is always at the head. A
retry waits in it as well, for the commit of its first attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog_broker.core.owner import Owner
from tidelog_broker.core.producers import StoredBatch
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

    def add(self, acks: pb.Acks, stored: StoredBatch, duplicate: bool, settle: Settle) -> None:
        """Let a batch wait that has its offsets."""
        queue = self._one if acks == pb.ONE else self._all if acks == pb.ALL else self._quorum
        queue.append(_Awaiting(stored, duplicate, settle))

    def release(self, owner: Owner, high_watermark: int) -> None:
        """Settle what enough replicas hold now."""
        _settle(self._quorum, high_watermark)
        if self._one:
            _settle(self._one, max(high_watermark, owner.held_by(owner.node_id)))
        if self._all:
            _settle(self._all, min(high_watermark, owner.held_by_all))

    def decided(self, end_offset: int, refusal: ProtocolError) -> None:
        """The epoch has ended: what lies before its end is stored for good, the rest is nowhere."""
        for waiting in (self._quorum, self._one, self._all):
            _settle(waiting, end_offset)
            while waiting:
                waiting.popleft().settle(refusal, False)

    def fail(self, error: ProtocolError) -> None:
        """Nobody will ever know here."""
        for waiting in (self._quorum, self._one, self._all):
            while waiting:
                waiting.popleft().settle(error, False)


def _settle(waiting: deque[_Awaiting], end_offset: int) -> None:
    while waiting and waiting[0].stored.end_offset <= end_offset:
        stored, duplicate, settle = waiting.popleft()
        settle(stored, duplicate)
