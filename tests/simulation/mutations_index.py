"""Mutations of the indexes of keys that miss entries. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_broker.storage.engine.reading import CandidateBatches
from tidelog_broker.storage.epoch.record_indexes import RecordIndexes
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.segment_hashes import SegmentHashes

Replacements = Sequence[tuple[object, str, object]]


def index_behind_the_watermark() -> Replacements:
    """Batches appended after a segment was first indexed are not searched."""
    catch_up = SegmentHashes.catch_up
    find = SegmentHashes.find

    def once(self: SegmentHashes, columns: Any, stop: int, *, windows_max: int) -> bool:
        new = [column for column in columns if not self.covered(column)]
        return not new or catch_up(self, new, stop, windows_max=windows_max)

    def indexed(self: SegmentHashes, column: Any, *place: int, newest: bool) -> CandidateBatches:
        key_hash, first, stop, count_max = place
        covered = min(stop, self.covered(column)) if column is not None else stop
        named = find(self, column, key_hash, first, max(first, covered), count_max, newest=newest)
        return named._replace(stop=stop) if newest or named.stop >= covered else named

    def prepare(self: RecordIndexes, segment: Any, opened: Any, column: Any, stop: int) -> None:
        del self, segment
        opened.hashes.catch_up([column], stop, windows_max=1 << 20)

    return [(SegmentHashes, "catch_up", once), (SegmentHashes, "find", indexed), (RecordIndexes, "prepare", prepare)]


def entries_behind_a_cut_kept() -> Replacements:
    """Truncated batches stay in the index, and their replacements are not indexed."""
    return [(HashRuns, "first", lambda self, _: self)]
