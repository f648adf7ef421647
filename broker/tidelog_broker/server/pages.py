"""Pagination of topic lists, for any number of topics and partitions.

An envelope holds 1 MiB, and there may be 20,000 topics. So an answer ends when its page is full and contains a cursor
with which the client asks for the next one. The cursor is a topic name and a partition number, not a count: topics that
are created or deleted between two pages do not cause others to be skipped or repeated, and any node can answer the next
page. A topic that fits a page is never split.

A page has two limits: entries (a topic counts one, and one per partition), so that making it takes the event loop a few
milliseconds, and bytes, which are counted as entries are added.
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
"""Maximum number of entries in a METADATA page, and in a list without partitions."""

DESCRIBED_ENTRIES: Final = 64
"""Maximum number of entries in a page with offsets, sizes and copies: 64 partitions with the longest node ids and 9
copies each still fit an envelope."""

Item = tuple[str, pb.TopicRecord | None]
"""Name and record of a topic in a list; the record is None for an unknown name."""

Describe = Callable[[pb.TopicRecord, int, int], pb.TopicInfo]
"""Describes the partitions of a topic whose numbers are at least the first argument and below the second."""


class Bounds(NamedTuple):
    """Limits of a page: entries, topics (0: unlimited) and bytes."""

    entries: int
    topics: int = 0
    size_bytes: int = PAGE_BYTES


class TopicPart(NamedTuple):
    """The description of one topic on a page, with its partitions from `first` up to `stop`, exclusive."""

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
        infos: the descriptions on the page, including those of unknown names.
        parts: the described ranges of partitions, each of an existing topic.
        next: the cursor of the next page; None on the last page.
    """

    infos: list[pb.TopicInfo] = field(default_factory=list)
    parts: list[TopicPart] = field(default_factory=list)
    next: pb.TopicCursor | None = None
    _entries: int = 0
    _size_bytes: int = 0

    def add(self, info: pb.TopicInfo, entries: int, size_bytes: int) -> None:
        """Add the description of a topic or of an unknown name."""
        self.infos.append(info)
        self._entries += entries
        self._size_bytes += size_bytes

    def is_full(self, bounds: Bounds, entries: int = 1) -> bool:
        """Return whether no more entries fit."""
        return bool(self.infos) and (
            self._entries + entries > bounds.entries
            or self._size_bytes >= bounds.size_bytes
            or len(self.infos) == bounds.topics
        )

    def has_room_for(self, size_bytes: int, bounds: Bounds) -> bool:
        """Return whether more bytes fit."""
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
    """Return a page of the items, up to the bounds, with the cursor of the next page.

    Args:
        items: the topics, starting with the cursor's.
        cursor: where the previous page ended; None for the first page.
        unknown: describes an unknown name; required if an item may have no record.
        brief: whether topics are described without their partitions.
    """
    page = Page()
    for name, record in items:
        at = cursor if cursor is not None and cursor.topic == name else None
        if at is not None and (record is None or not at.topic_id):
            continue
        if record is None:
            assert unknown is not None, "an item without a record needs `unknown`"
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
        page.parts.append(TopicPart(record, first, stop, info))
        if stop < count:
            return _ended(page)
    return page


def _ended(page: Page) -> Page:
    """Set the cursor of a full page, and return the page."""
    last = page.infos[-1]
    part = page.parts[-1] if page.parts else None
    page.next = pb.TopicCursor(topic=last.name, topic_id=last.topic_id)
    if part is not None and part.info is last:
        page.next.partition = part.stop
    return page


def all_items(
    topics: TopicRegistry, cursor: pb.TopicCursor | None, *, internal: bool, session: Session | None = None
) -> Iterator[Item]:
    """Yield the topics that `session` may see (None: all) from a cursor on; internal ones only if `internal`."""
    for record in topics.live_from(cursor.topic if cursor is not None else ""):
        if (internal or not record.name.startswith(INTERNAL_PREFIX)) and (
            session is None or session.may_see(record.name)
        ):
            yield record.name, record


def named_items(topics: TopicRegistry, names: list[str], cursor: pb.TopicCursor | None) -> Iterator[Item]:
    """Yield the named topics in the given order, starting at a cursor; all if the cursor's topic is not named."""
    at = 0
    if cursor is not None and cursor.topic in names:
        at = names.index(cursor.topic)
    for index in range(at, len(names)):
        yield names[index], topics.find(names[index])


def cursor_of(message: pb.Metadata | pb.TopicList | pb.TopicDescribe | pb.ClusterStatus) -> pb.TopicCursor | None:
    """Return the cursor of a request; None for the first page."""
    return message.cursor if message.HasField("cursor") else None
