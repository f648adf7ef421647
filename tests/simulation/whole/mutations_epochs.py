"""Ways to get the epochs of waiting records wrong: in the worlds in which logs are handed to another node and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.mutants import Replacement

from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.partition.pipeline import Pipeline, QueuedBatch
from tidelog_proto.errors import ProtocolError

Replacements = Sequence[Replacement]


def epochs_not_compared() -> Replacements:
    """A record is appended in whichever epoch its turn comes."""
    return [(QueuedBatch, "may_enter", lambda self, epoch: True)]


def newest_epoch_compared() -> Replacements:
    """A record is refused only where another node owns the newest epoch that is known when an epoch ends."""
    decided = Pipeline.decided

    def refuses(self: Pipeline, end_offset: int, refusal: ProtocolError, **rest: Any) -> None:
        if self._state.owner_id != self._state.replica.state.node_id:
            bound = [pending for pending in self._queue if pending.epoch is not None]
            for pending in bound:
                self._queue.remove(pending)
                self.queued_bytes -= len(pending.data)
                pending.settle(self._state.outdated(pending.epoch), False)
        decided(self, end_offset, refusal, **rest)

    return [(QueuedBatch, "may_enter", lambda self, epoch: True), (Pipeline, "decided", refuses)]


def prepared_counts_for_ever() -> Replacements:
    """Positions that a coordinator has prepared count in later epochs, too, written or not."""
    return [(GroupOffsets, "forget_pending", lambda self: None)]
