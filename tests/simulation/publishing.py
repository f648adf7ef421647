"""Publishes that wait at an owner for their quorum, and how each of them ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tidelog_broker.core.replica import Replica


class PublishReply(NamedTuple):
    """What a client is told. "refused": nothing was written by this attempt; "not written": nor will it ever be."""

    kind: Literal["stored", "refused", "not written"]
    base_offset: int = -1
    end_offset: int = -1
    epoch: int = -1
    error: int = 0
    owner_hint: str = ""


@dataclass(slots=True)
class Pending:
    """A publish that has its offsets."""

    epoch: int
    base_offset: int
    end_offset: int
    acks: pb.Acks
    reply: Callable[[PublishReply], None]


class Waiting:
    """The publishes of one partition on one node."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    def add(self, pending: Pending) -> None:
        """Wait for a publish, which may be complete already."""
        self._pending.append(pending)

    def settle(self, replica: Replica) -> None:
        """Answer what is complete now."""
        if self._pending:
            self._pending = [pending for pending in self._pending if not self._try(pending, replica)]

    def _try(self, pending: Pending, replica: Replica) -> bool:
        if not self._complete(pending, replica):
            return False
        pending.reply(PublishReply("stored", pending.base_offset, pending.end_offset, pending.epoch))
        return True

    @staticmethod
    def _complete(pending: Pending, replica: Replica) -> bool:
        active = replica.active
        if pending.epoch < active.epoch and pending.end_offset <= active.start_offset:
            # A retry of what an earlier epoch holds, which is decided. Whether all of its replicas do is not known.
            return pending.acks != pb.ALL
        owner = replica.owner
        if pending.epoch != active.epoch:
            return False
        if pending.acks == pb.ONE:
            return owner is not None and owner.held_by(replica.node_id) >= pending.end_offset
        if pending.acks == pb.ALL:
            return owner is not None and owner.held_by_all >= pending.end_offset
        return replica.high_watermark >= pending.end_offset

    def decided(self, epoch: int, end_offset: int, held_by_all: int) -> None:
        """An epoch has ended: what lies before its end is stored, what was behind it never was."""
        ended = [pending for pending in self._pending if pending.epoch == epoch]
        self._pending = [pending for pending in self._pending if pending.epoch != epoch]
        for pending in ended:
            if pending.end_offset <= end_offset:
                if pending.acks != pb.ALL or pending.end_offset <= held_by_all:
                    pending.reply(PublishReply("stored", pending.base_offset, pending.end_offset, pending.epoch))
            else:
                pending.reply(PublishReply("not written"))
