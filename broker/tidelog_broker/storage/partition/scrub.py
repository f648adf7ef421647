"""The parts of a log that are reread to find damage before a reader does."""

from __future__ import annotations

from tidelog_broker.storage.engine.reading import ScrubPart
from tidelog_broker.storage.partition.partition_log import PartitionLog


def parts_of(store: PartitionLog) -> list[ScrubPart]:
    """Return the parts of a log that take no more appends, oldest first."""
    return [part for held in store.epochs for part in held.scrub_parts(is_newest=held is store.active)]


def is_held(store: PartitionLog, part: ScrubPart) -> bool:
    """Return whether a log still has a part; retention, compaction or a truncation may have removed or changed it."""
    return part in parts_of(store)
