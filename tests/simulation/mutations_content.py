"""Mutations of deduplication: content of the window, answers to duplicates, and their sequence numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidelog_broker.core.replication.epoch_writer import Group, OffsetAssigner
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.partition import deduplication
from tidelog_broker.partition.content_history import ContentHistory
from tidelog_broker.partition.deduplication import Deduplication
from tidelog_broker.partition.pipeline import PendingAcks, Settle
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.deduplication import without_dropped
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

Replacements = Sequence[tuple[object, str, object]]


def window_begins_empty() -> Replacements:
    """A new owner does not read its window back."""
    init = ContentHistory.__init__

    def begin_empty(self: ContentHistory, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.is_whole = True

    return [(ContentHistory, "__init__", begin_empty)]


def window_outlives_its_epoch() -> Replacements:
    """A window continues in a later epoch of the same owner, including truncated batches."""

    def is_ready_for(self: Deduplication, owner: OffsetAssigner) -> bool:
        if self._window is not None:
            self._owner = owner
        return self._window is not None

    return [(Deduplication, "is_ready_for", is_ready_for), (Deduplication, "forget", lambda _: None)]


def answered_at_once() -> Replacements:
    """A batch of duplicates is answered before the original is committed."""
    add = PendingAcks.add

    def answer(
        self: PendingAcks, acks: pb.Acks, stored: PlacedBatch, duplicate: bool, settle: Settle, *, epoch: int
    ) -> None:
        if stored.duplicates and stored.duplicates == stored.end_sequence - stored.base_sequence:
            settle(stored, duplicate)
        else:
            add(self, acks, stored, duplicate, settle, epoch=epoch)

    return [(PendingAcks, "add", answer)]


def numbers_of_dropped_records_left_over() -> Replacements:
    """A thinned batch takes as many sequence numbers as it has records."""

    def without_span(batch: RecordBatch, keep: Any) -> bytearray:
        thinned = without_dropped(batch, keep)
        header = unpack_header(thinned)._replace(sequence_span=0)
        thinned[:HEADER_BYTES] = header.pack()
        stamp_owner(thinned, base_offset=0, append_timestamp_us=0, epoch=0, owner_incarnation=0, previous_digest=0)
        return thinned

    return [(deduplication, "without_dropped", without_span)]


def refused_batches_stay_in_the_window() -> Replacements:
    """The content of a batch is added to the window before its sequence is checked."""
    accept = Deduplication.screen_and_accept

    def add_first(self: Deduplication, owner: OffsetAssigner, batches: Sequence[Batch]) -> Group:
        group = accept(self, owner, batches)
        for batch, outcome in zip(batches, group.outcomes, strict=False):
            if isinstance(outcome, ProtocolError) and self._window is not None and self._hasher is not None:
                contents = self._hasher.hashes(RecordBatch(batch.header, batch.data[HEADER_BYTES:]))
                offsets = np.full(len(contents), owner.next_offset)
                if self._window.reserve(len(contents)):
                    self._window.add(contents, offsets, np.full(len(contents), self._now_us(owner)))
        return group

    return [(Deduplication, "screen_and_accept", add_first)]
