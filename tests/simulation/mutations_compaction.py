"""Mutations of compaction: which records survive, what takes an older version's place, and how. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.epoch_versions import EpochVersions
from tidelog_broker.core.replication.producer_state_fetch import ProducerStateFetch
from tidelog_broker.partition.compacted_versions import CompactedVersions
from tidelog_broker.partition.compaction import Compaction
from tidelog_broker.partition.producer_snapshots import SnapshotWriter
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.logged_producers import LoggedProducers
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.directory.epoch_dir import remove_epoch_dir
from tidelog_broker.storage.engine.store import Volume
from tidelog_broker.storage.partition import compacted_copies, newest_search
from tidelog_broker.storage.partition.compacted_copies import CompactedCopies
from tidelog_broker.storage.partition.compaction_pass import FinishedVersion, Terms
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_proto.batch import derived_batch
from tidelog_proto.batch.canonical_columns import exact_deltas

Replacements = Sequence[tuple[object, str, object]]


# ------------------------------------------------------------------------------------------ what survives


def older_value_kept() -> Replacements:
    """Of each key the oldest record survives."""

    def oldest(tables: Sequence[Any]) -> Any:
        grouped = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate([("offset", "min")])
        return grouped.rename_columns(["key", "offset"])

    return [(newest_search, "_merged", oldest)]


def tombstones_dropped_at_once() -> Replacements:
    """The first pass that sees a tombstone drops it."""
    return [(Compaction, "_tombstones_below", lambda self: self._state.high_watermark)]


def offsets_renumbered() -> Replacements:
    """The remaining records of a batch get offsets without gaps."""
    return [(derived_batch, "exact_deltas", lambda deltas: exact_deltas(np.arange(len(deltas))))]


# ------------------------------------------------------------------------------------------ held and decided content


def _undigested() -> list[tuple[object, str, object]]:
    """The result of any pass replaces the decided content."""
    put_in_place = CompactedVersions._put_in_place

    async def anyhow(self: CompactedVersions, made: FinishedVersion, decided: int, end: LogPosition) -> bool:
        return await put_in_place(self, made, decided, made.end)

    return [(CompactedVersions, "_put_in_place", anyhow)]


def undigested_while_records_are_lost() -> Replacements:
    """A replica's pass loses the records before the last epoch, and its result replaces the decided content."""
    make = CompactedVersions.make

    def losing(self: CompactedVersions, epochs: Sequence[int], terms: Terms) -> Any:
        known = self._state.replica.state
        lost = (
            terms if known.active.owner == known.node_id else terms._replace(floor=max(terms.floor, terms.horizon - 1))
        )
        return make(self, epochs, lost)

    return [*_undigested(), (CompactedVersions, "make", losing)]


def compacted_without_being_whole() -> Replacements:
    """A pass compacts the existing history, also if a part before the horizon is missing."""
    return [
        *_undigested(),
        (CompactedVersions, "can_pass", lambda *_: True),
        (EpochVersions, "can_make", lambda *_: True),
    ]


def only_the_newest_is_given() -> Replacements:
    """A node that lacks an epoch takes only the newest version, and nodes with another one do not offer it."""
    takes = Backfill._takes

    def newest(self: Backfill, fetch: Any, end: Any) -> bool:
        return end == self._state.ends_of(fetch.epoch)[-1] and takes(self, fetch, end)

    return [(Backfill, "_takes", newest)]


def put_in_place_before_the_decision_is_durable() -> Replacements:
    """A version is put in place as soon as its decision is known."""
    return [(ReplicaDriver, "is_learning", property(lambda _: False))]


# ------------------------------------------------------------------------------------------ and where retention deletes


def made_without_its_front() -> Replacements:
    """A copy with a start deleted by retention counts as a source of the newest version."""
    can_make = EpochVersions.can_make

    def anyhow(self: EpochVersions, epoch: int) -> bool:
        with patch.object(type(self._state.log), "copy_start", lambda *_: 0):
            return can_make(self, epoch)

    return [(EpochVersions, "can_make", anyhow)]


def borders_not_looked_for() -> Replacements:
    """A node without a batch boundary at the log start does not return another node to ask."""
    return [(ReplicaLog, "batch_start", lambda *_: None)]


# ------------------------------------------------------------------------------------------ how versions change


def producers_not_fetched() -> Replacements:
    """A copied compacted epoch lacks the producer state of its batches, and the owner does not keep received state.

    Each makes up for the lack of the other: none of 510 worlds detected copies without it while owners keep it.
    """
    return [(ProducerStateFetch, "want", lambda *_: None), (SnapshotWriter, "begin_epoch", lambda *_: None)]


def producers_not_kept() -> Replacements:
    """Producer state of batches is lost by compaction, and the owner does not request it from others."""
    scan = LoggedProducers._scan

    def forgetful(self: LoggedProducers, offset: int, log_start: int) -> Any:
        table, last = scan(self, offset, log_start)
        if table is not None:
            table.known_from = 0
        return table, last

    return [(LoggedProducers, "at_end", lambda *_, **__: None), (LoggedProducers, "_scan", forgetful)]


def older_copy_removed_first() -> Replacements:
    """The older version of an epoch is removed before the newer one has its name."""
    put_in_place = CompactedCopies.put_in_place

    def removing(self: CompactedCopies, epoch: int, decided: int, end: LogPosition) -> None:
        old = self._held.log_of(epoch)
        if old is not None and old.damage is None and old.end_offset == end.offset:
            remove_epoch_dir(self._held.disk.fs, old.directory)
        put_in_place(self, epoch, decided, end)

    def once(volume: Volume, path: Path) -> None:
        if volume.fs.exists(path):
            remove_epoch_dir(volume.fs, path)

    return [(CompactedCopies, "put_in_place", removing), (compacted_copies, "remove_store", once)]
