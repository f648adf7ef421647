"""The segments of an epoch: replaced by the writer, read by readers, see `epoch_reader`."""

from __future__ import annotations

import threading

from tidelog_broker.storage.engine.store import Damage
from tidelog_broker.storage.segment.active_segment import ActiveSegment
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.sealed_segment import SealedSegment

Segment = SealedSegment | ActiveSegment


class HeldSegments:
    """The segments of an epoch and their end: replaced by the writer, read by readers; see the module.

    Attributes:
        segments: oldest first, at least one; replaced as a whole.
        end: the end of the last appended record; in LIMBO, of the last readable one.
        damage: why the log is in LIMBO, None if it is not.
        beside: held while creating a file beside a segment, and while closing or truncating the log.
        takes_files: whether a file may be created beside a sealed segment; changed with `beside` held.
    """

    __slots__ = ("beside", "damage", "end", "segments", "takes_files")

    def __init__(self, segments: tuple[Segment, ...], end: SegmentEnd) -> None:
        assert segments
        self.segments = segments
        self.end = end
        self.damage: Damage | None = None
        self.beside = threading.Lock()
        self.takes_files = True
