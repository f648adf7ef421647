"""Lists of topics in pages, whatever their number and that of their partitions.

An envelope holds a megabyte and topics may be twenty thousand. So an answer about many of them ends where a page is
full and says where it ended, and who wants more asks again from there. The cursor is a name and the number of a
partition, not a count: topics that are made or deleted between two pages make it neither skip nor repeat another one,
and any node can give the next page. A topic stays in one piece if it fits a page of its own.

A page is bounded twice: in entries (a topic, and each of its partitions, is one), so that making it takes the event
loop a few milliseconds, and in bytes, which are counted as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import PAGE_BYTES
from tidelog_proto.names import INTERNAL_PREFIX

ROUTED_ENTRIES: Final = 512
"""Of a page of METADATA, and of a list without partitions."""

DESCRIBED_ENTRIES: Final = 64
"""Of a page with offsets, sizes and copies. What their owners tell is larger than what this node knows of them: 64
partitions with the longest ids that nodes can have, and 9 copies each, still fit an envelope."""

Item = tuple[str, pb.TopicRecord | None]
"""A topic that is to be told of; None for a name that nothing has."""

Describe = Callable[[pb.TopicRecord, int, int], pb.TopicInfo]
"""Tells of a topic's partitions, from the first number to before the second."""


class Bounds(NamedTuple):
    """Of a page: its entries, topics (0: no bound) and bytes."""

    entries: int
    topics: int = 0
    size_bytes: int = PAGE_BYTES


class Piece(NamedTuple):
    """What a page tells of one topic: the partitions `first` to before `stop`, as this node knows them."""

    record: pb.TopicRecord
    first: int
    stop: int
    info: pb.TopicInfo

    @property
    def indices(self) -> range:
        """The numbers of the partitions."""
        return range(self.first, self.stop)


@dataclass(slots=True)
class Page:
    """A page that is being filled.

    Attributes:
        infos: what it tells.
        pieces: the same, of the topics that there are.
        next: where it ended; None when there is no more.
    """

    infos: list[pb.TopicInfo] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    next: pb.TopicCursor | None = None
    _entries: int = 0
    _size_bytes: int = 0

    def add(self, info: pb.TopicInfo, entries: int, size_bytes: int) -> None:
        """Add what is told of a topic, or of a name."""
        self.infos.append(info)
        self._entries += entries
        self._size_bytes += size_bytes

    def is_full(self, bounds: Bounds, entries: int = 1) -> bool:
        """Whether so many entries more have no room."""
        return bool(self.infos) and (
            self._entries + entries > bounds.entries
            or self._size_bytes >= bounds.size_bytes
            or len(self.infos) == bounds.topics
        )

    def has_room_for(self, size_bytes: int, bounds: Bounds) -> bool:
        """Whether so many bytes more fit."""
        return self._size_bytes + size_bytes <= bounds.size_bytes


def fill(
    items: Iterable[Item],
    cursor: pb.TopicCursor | None,
    bounds: Bounds,
    describe: Describe,
    unknown: Callable[[str], pb.TopicInfo] | None = None,
    *,
    brief: bool = False,
) -> Page:
    """Fill a page.

    Args:
        items: the topics from the cursor's on, that one included.
        cursor: where the page before ended; None for the first.
        bounds: how much it may hold.
        describe: tells of a topic.
        unknown: tells that there is none; needed where an item may be none.
        brief: topics are told of without their partitions.
    """
    page = Page()
    for name, record in items:
        at = cursor if cursor is not None and cursor.topic == name else None
        if at is not None and (record is None or not at.topic_id):
            continue
        if record is None:
            assert unknown is not None, "an item is none"
            if page.is_full(bounds):
                return _ended(page)
            info = unknown(name)
            page.add(info, 1, info.ByteSize())
            continue
        count = record.config.partitions
        first = at.partition if at is not None and at.topic_id == record.topic_id else 0
        if first and first >= count:
            continue
        if page.is_full(bounds, 1 if brief else 1 + count - first):
            return _ended(page)
        stop = count if brief else min(count, first + max(1, bounds.entries - 1))
        info = describe(record, first, stop)
        size_bytes = info.ByteSize()
        if page.infos and not page.has_room_for(size_bytes, bounds):
            return _ended(page)
        while size_bytes > bounds.size_bytes and stop - first > 1 and not brief:
            stop = first + (stop - first) // 2
            info = describe(record, first, stop)
            size_bytes = info.ByteSize()
        page.add(info, 1 if brief else 1 + stop - first, size_bytes)
        page.pieces.append(Piece(record, first, stop, info))
        if stop < count:
            return _ended(page)
    return page


def _ended(page: Page) -> Page:
    """Say where a page has ended."""
    last = page.infos[-1]
    piece = page.pieces[-1] if page.pieces else None
    page.next = pb.TopicCursor(topic=last.name, topic_id=last.topic_id)
    if piece is not None and piece.info is last:
        page.next.partition = piece.stop
    return page


def all_items(
    topics: TopicRegistry, cursor: pb.TopicCursor | None, *, internal: bool, session: Session | None = None
) -> Iterator[Item]:
    """Yield the topics there are, from a cursor's on; of those that `session` may see, if there is one."""
    for record in topics.live_from(cursor.topic if cursor is not None else ""):
        if (internal or not record.name.startswith(INTERNAL_PREFIX)) and (
            session is None or session.may_see(record.name)
        ):
            yield record.name, record


def named_items(topics: TopicRegistry, names: list[str], cursor: pb.TopicCursor | None) -> Iterator[Item]:
    """Yield the topics that are named, in that order and from a cursor's on; all of them if it names none of these."""
    at = 0
    if cursor is not None and cursor.topic in names:
        at = names.index(cursor.topic)
    for index in range(at, len(names)):
        yield names[index], topics.find(names[index])


def cursor_of(asked: pb.Metadata | pb.TopicList | pb.TopicDescribe | pb.ClusterStatus) -> pb.TopicCursor | None:
    """Return where a question goes on; None for its first page."""
    return asked.cursor if asked.HasField("cursor") else None
