"""The state of an epoch's log that its writer changes and its readers read; see `epoch_reader`."""

from __future__ import annotations

import threading

from tidelog_broker.storage.engine.store import Damage
from tidelog_broker.storage.segment.active_segment import ActiveSegment
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.sealed_segment import SealedSegment

Segment = SealedSegment | ActiveSegment


class HeldSegments:
    """The segments of an epoch, the end of its log, and its damage. Only the writer changes them.

    Attributes:
        segments: oldest first, at least one; replaced as a whole.
        end: the end of the last appended record; in LIMBO, of the last readable one.
        damage: why the log is in LIMBO, None if it is not.
        beside: the lock that is held while an index file is created beside a segment, and while the writer clears
            `takes_files` or removes the oldest segment, so that no index file appears beside a removed segment.
        takes_files: whether an index file may be created beside a sealed segment; False while the log is truncated,
            and once it is closed.
    """

    __slots__ = ("beside", "damage", "end", "segments", "takes_files")

    def __init__(self, segments: tuple[Segment, ...], end: SegmentEnd) -> None:
        assert segments
        self.segments = segments
        self.end = end
        self.damage: Damage | None = None
        self.beside = threading.Lock()
        self.takes_files = True
