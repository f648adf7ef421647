"""Mutations of records in memory that are written to files in the background. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_broker.storage.memory.write_behind import WriteBehindEngine, WriteBehindStore
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def prefix_is_whole() -> Replacements:
    """A copy of which a restart has found a prefix does not count as lost."""
    original = WriteBehindStore.__init__

    def init(self: WriteBehindStore, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.is_lost = self.is_lost and not self.size_bytes

    return [(WriteBehindStore, "__init__", init)]


def no_ceiling_of_a_prefix() -> Replacements:
    """A replica that has found a prefix reports no ceiling."""
    original = ReplicaState.send

    def send(self: ReplicaState, to: str, message: Any, batches: Sequence[memoryview] = ()) -> None:
        if isinstance(message, pb.SealReply) and message.end_offset > self.active.start_offset:
            message.ceiling = 0
        original(self, to, message, batches)

    return [(ReplicaState, "send", send)]


def survives() -> Replacements:
    """The engine promises that its records survive a restart."""
    original = WriteBehindEngine.__init__

    def init(self: WriteBehindEngine, *arguments: Any) -> None:
        original(self, *arguments)
        self.capabilities = replace(self.capabilities, survives_restart=True)

    return [(WriteBehindEngine, "__init__", init)]


def part_of_an_ended_epoch_is_whole() -> Replacements:
    """An ended epoch of which a part was written counts as one that ends there."""
    original = WriteBehindEngine.open

    def opened(
        self: WriteBehindEngine, directory: Path, *, sealed_end_offset: int | None = None, **named: Any
    ) -> object:
        store = original(self, directory, **named)
        if sealed_end_offset is not None and store is not None:
            store.seal()
        return store

    return [(WriteBehindEngine, "open", opened)]
