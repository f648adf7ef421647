"""Losses of records in memory: which records may be lost, and the errors that readers get.

M1: an acknowledged record stays readable while fewer than an ack quorum of the nodes that have held it restart.
M2 is I1: no two batches at one offset of an epoch.
M3: an offset that was given out is given to no other record, and readers that lack records get the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader

if TYPE_CHECKING:
    from tests.simulation.truth import Truth


class Losses:
    """The losses of one partition whose records are in memory."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._ranges: list[range] = []

    def is_lost(self, offset: int) -> bool:
        """Whether the record at an offset was lost, as decided."""
        return any(offset in lost for lost in self._ranges)

    def decided(self, value: pb.EpochDecision) -> None:
        """The end of an epoch is decided, perhaps before committed records (M1, M3)."""
        truth, committed = self._truth, self._truth.committed.get(value.epoch, 0)
        if value.end_offset < committed:
            for header in list(truth.batches[value.epoch].values()):
                if value.end_offset < header.end_offset <= committed:
                    self._may_lose(header, truth.durable)
            truth.require(
                value.lost_until >= committed,
                "M3",
                f"epoch {value.epoch} ends at {value.end_offset}, {committed} was given out, "
                f"lost until {value.lost_until}",
            )
        if value.lost_until:
            self._ranges.append(range(value.end_offset, value.lost_until))

    def _may_lose(self, header: BatchHeader, held_by: Mapping[tuple[str, int], int]) -> None:
        """A batch is lost: an ack quorum of its holders does not have it any more (M1).

        Args:
            held_by: the offset up to which each node has each epoch.
        """
        truth, epoch, end = self._truth, header.epoch, header.end_offset
        had = {node for (node, at), held in truth.ever.items() if at == epoch and held >= end}
        have = {node for (node, at), held in held_by.items() if at == epoch and held >= end}
        quorum = truth.descriptors[epoch].ack_quorum
        truth.require(
            len(had - have) >= quorum,
            "M1",
            f"offset {header.base_offset} of epoch {epoch} is lost, {sorted(had)} had it, {sorted(have)} have it",
        )

    def committed(self, header: BatchHeader) -> None:
        """A batch is committed: no earlier epoch has given out its offsets (M3)."""
        if header.record_count:
            earlier = [end for epoch, end in self._truth.committed.items() if epoch < header.epoch]
            given = max(earlier, default=0)
            self._truth.require(
                header.base_offset >= given,
                "M3",
                f"offset {header.base_offset} of epoch {header.epoch} was given out before, up to {given}",
            )

    def told(self, who: str, position: int, resume: int) -> None:
        """A reader gets an error with the offset at which it continues: everything before that is lost.

        An ended epoch of which no copy reaches the end is lost as a whole, even if restarts have found prefixes.
        """
        truth = self._truth
        truth.require(resume > position, "M3", f"{who} sends a reader from {position} to {resume}")
        for epoch in truth.epochs():
            chosen = truth.chosen.get(epoch)
            end = chosen.value.end_offset if chosen is not None else truth.committed.get(epoch, 0)
            for header in list(truth.batches[epoch].values()):
                if header.record_count and position <= header.base_offset < resume and header.end_offset <= end:
                    self._may_lose(header, truth.since_start)
