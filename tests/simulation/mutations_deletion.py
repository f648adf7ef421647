"""Mutations of how it is agreed below which offset records are deleted. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidelog_broker.core.replication import candidate
from tidelog_broker.core.replication.deletion import Deletion
from tidelog_broker.core.replication.paxos import Promise, choose_value, decision_value

Replacements = Sequence[tuple[object, str, object]]


def lost_at_takeover() -> Replacements:
    """A node that ends an epoch does not collect the notes of that epoch."""

    def chosen(promises: Sequence[Promise], **rest: Any) -> bytes:
        return choose_value([replace(promise, deleting_below=0) for promise in promises], **rest)

    return [(candidate, "choose_value", chosen)]


def lost_at_planned_end() -> Replacements:
    """An owner that gives its epoch up does not report its deletions."""

    def decided(*args: Any, deleted_below: int = 0, **rest: Any) -> bytes:
        return decision_value(*args, **rest)

    return [(candidate, "decision_value", decided)]


def counted_by_the_owner_alone() -> Replacements:
    """The owner's own note is enough."""

    def count(self: Deletion) -> None:
        if self._state.may_acknowledge:
            self._counts(self.noted)

    return [(Deletion, "_count", count)]
