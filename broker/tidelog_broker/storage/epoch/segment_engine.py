"""The segment engine: epochs as segment files, the durable default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.engine.store import SEGMENT, Capabilities, Engine, EpochStart, EpochStore, Volume
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.recovery import lay_out_segments
from tidelog_broker.storage.segment.active_segment import SegmentStart
from tidelog_broker.storage.segment.disk import Disk

CAPABILITIES: Final = Capabilities(
    durable=True, survives_restart=True, compactable=True, tierable=True, indexes=frozenset({"key", "tag"})
)


class SegmentEngine(Engine):
    """The segment engine of a node: creates and opens `EpochLog`s."""

    name = SEGMENT
    capabilities = CAPABILITIES

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        """Create the first segment; see `Engine.lay_out`."""
        first = SegmentStart(start.topic_id, start.partition, start.epoch, start.offset, start.digest, start.offset)
        lay_out_segments(self._disk, directory, first, segment_bytes=segment_bytes)

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore:
        """Recover an epoch; see `EpochLog.open`."""
        return EpochLog.open(
            self._disk, directory, segment_bytes=segment_bytes, sealed_end_offset=sealed_end_offset, is_new=is_new
        )

    def is_deleted(self, names: Sequence[str]) -> bool:
        """Return whether a directory with these names has no segments."""
        return not any(name.endswith(SEGMENT_SUFFIX) for name in names)


def segment_engine(volume: Volume) -> Engine:
    """Return the segment engine of a node, whose resources are a `Disk`."""
    return SegmentEngine(cast(Disk, volume))
