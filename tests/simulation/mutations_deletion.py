"""Mutations of how it is agreed below which offset records are deleted. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidelog_broker.core.replication import candidate
from tidelog_broker.core.replication.deletion import Deletion
from tidelog_broker.core.replication.effects import WriteFences
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.paxos import Promise, choose_value, decision_value
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def lost_at_takeover() -> Replacements:
    """Whoever ends an epoch does not ask what was noted in it."""

    def chosen(promises: Sequence[Promise], **rest: Any) -> bytes:
        return choose_value([replace(promise, deleting_below=0) for promise in promises], **rest)

    return [(candidate, "choose_value", chosen)]


def lost_at_planned_end() -> Replacements:
    """An owner that gives its epoch up does not say what it had deleted."""

    def decided(*args: Any, deleted_below: int = 0, **rest: Any) -> bytes:
        return decision_value(*args, **rest)

    return [(candidate, "decision_value", decided)]


def counted_by_the_owner_alone() -> Replacements:
    """What the owner has noted counts."""

    def count(self: Deletion) -> None:
        if self._state.may_acknowledge:
            self._counts(self.noted)

    return [(Deletion, "_count", count)]


def noted_after_a_promise() -> Replacements:
    """A replica notes what its owner wants deleted, although it has promised to end the epoch."""

    def below(self: Fence, offset: int) -> pb.FenceEntry | None:
        if offset <= self.entry.deleting_below:
            return None
        self.entry.deleting_below = offset
        return self._copy()

    def heard(self: Deletion, append: pb.AppendBatch) -> None:
        self._note(append.deleting_below)

    return [(Fence, "delete_below", below), (Deletion, "heard", heard)]


def told_before_it_is_durable() -> Replacements:
    """What is to be deleted is acknowledged while it is being written."""

    def note(self: Deletion, offset: int) -> None:
        fence = self._state.fence
        entry = fence.delete_below(offset) if fence is not None else None
        if entry is not None:
            self._state.write(WriteFences([entry]), lambda _ok, _now_ms: None)
            self.noted = offset
            self.on_ack(self._state.node_id, offset)
            self._acknowledge(0)

    return [(Deletion, "_note", note)]
