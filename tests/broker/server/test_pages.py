"""Topic pages: limits in entries and bytes, order, and completeness under changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.server.pages import Bounds, all_items, fill, named_items
from tidelog_proto import broker_pb2 as pb

ENTRIES = 10


def record(name: str, partitions: int = 1, creation: int = 0) -> pb.TopicRecord:
    topic_id = f"{name}/{creation}".encode().ljust(16, b"\0")[:16]
    return pb.TopicRecord(name=name, topic_id=topic_id, config=pb.TopicConfig(partitions=partitions), revision=1)


def registry(*records: pb.TopicRecord) -> TopicRegistry:
    topics = TopicRegistry()
    for one in records:
        assert topics.apply(one)
    return topics


def describe(one: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
    partitions = [pb.PartitionInfo(partition=index) for index in range(first, stop)]
    return pb.TopicInfo(name=one.name, topic_id=one.topic_id, config=one.config, partitions=partitions)


def unknown(name: str) -> pb.TopicInfo:
    return pb.TopicInfo(name=name, error=pb.Error(code=pb.UNKNOWN_TOPIC))


def told(info: pb.TopicInfo) -> tuple[str, list[int]]:
    return info.name, [one.partition for one in info.partitions]


def read(topics: TopicRegistry, bounds: Bounds, *, names: list[str] | None = None) -> list[list[tuple[str, list[int]]]]:
    """Return what each page tells, until there is no more."""
    cursor: pb.TopicCursor | None = None
    pages: list[list[tuple[str, list[int]]]] = []
    while True:
        items = all_items(topics, cursor, internal=False) if names is None else named_items(topics, names, cursor)
        page = fill(items, cursor, bounds, describe, unknown)
        pages.append([told(info) for info in page.infos])
        if page.next is None:
            return pages
        assert page.infos, "an empty page has no successor"
        cursor = page.next


def test_topic_that_fits_a_page_is_not_split() -> None:
    topics = registry(record("a", 3), record("b", 4), record("c", 5), record("d", 30), record("e"), record("__x"))
    pages = read(topics, Bounds(ENTRIES))
    assert pages == [
        [("a", [0, 1, 2]), ("b", [0, 1, 2, 3])],
        [("c", [0, 1, 2, 3, 4])],
        [("d", list(range(9)))],
        [("d", list(range(9, 18)))],
        [("d", list(range(18, 27)))],
        [("d", [27, 28, 29]), ("e", [0])],
    ]


def test_page_is_limited_in_topics_and_bytes() -> None:
    topics = registry(*(record(name, 4) for name in "abc"))
    assert [len(page) for page in read(topics, Bounds(100, topics=2))] == [2, 1]
    one_bytes = describe(topics.named("a"), 0, 4).ByteSize()
    assert [len(page) for page in read(topics, Bounds(100, size_bytes=2 * one_bytes))] == [2, 1]
    pages = read(topics, Bounds(100, size_bytes=one_bytes - 1))
    assert [one for page in pages for one in page] == [(name, part) for name in "abc" for part in ([0, 1], [2, 3])]
    assert [len(page) for page in read(topics, Bounds(100, size_bytes=1))] == [1] * 12, "one partition always fits"


def test_changes_between_pages_neither_skip_nor_repeat_topics() -> None:
    topics = registry(*(record(name, 12) for name in "bdf"))
    first = fill(all_items(topics, None, internal=False), None, Bounds(ENTRIES), describe)
    assert [told(info) for info in first.infos] == [("b", list(range(9)))]
    for one in (record("a"), record("c")):
        topics.apply(one)
    gone = record("b", 12)
    gone.deleted, gone.revision = True, 2
    topics.apply(gone)
    items = all_items(topics, first.next, internal=False)
    assert [told(info) for info in fill(items, first.next, Bounds(ENTRIES), describe).infos] == [("c", [0])]
    topics.apply(record("b", 3, creation=1))
    items = all_items(topics, first.next, internal=False)
    page = fill(items, first.next, Bounds(ENTRIES), describe)
    assert [told(info) for info in page.infos] == [("b", [0, 1, 2]), ("c", [0])], (
        "another topic is described completely"
    )


def test_partitions_added_between_pages_are_listed() -> None:
    topics = registry(record("a", 9), record("b", 9))
    first = fill(all_items(topics, None, internal=False), None, Bounds(ENTRIES), describe)
    assert first.next is not None
    grown = record("a", 11)
    grown.revision = 2
    topics.apply(grown)
    page = fill(all_items(topics, first.next, internal=False), first.next, Bounds(ENTRIES), describe)
    assert [told(info) for info in page.infos] == [("a", [9, 10])]


def test_named_topics_keep_the_requested_order() -> None:
    topics = registry(record("a", 3), record("b", 30), record("c"))
    names = ["x", "c", "b", *(f"y{number}" for number in range(25)), "a"]
    pages = read(topics, Bounds(ENTRIES), names=names)
    assert [name for page in pages for name, _ in page] == ["x", "c", "b", "b", "b", "b", *names[3:]]
    assert [index for page in pages for name, part in page if name == "b" for index in part] == list(range(30))
    assert all(sum(1 + len(part) for _, part in page) <= ENTRIES + len(page) for page in pages)


def test_brief_list_contains_each_topic_once() -> None:
    topics = registry(*(record(f"t{number:02}", 50) for number in range(25)))
    cursor: pb.TopicCursor | None = None
    found: list[list[str]] = []
    while True:
        page = fill(
            all_items(topics, cursor, internal=False),
            cursor,
            Bounds(ENTRIES),
            lambda one, first, stop: pb.TopicInfo(name=one.name, topic_id=one.topic_id),
            brief=True,
        )
        found.append([info.name for info in page.infos])
        if page.next is None:
            break
        cursor = page.next
    assert [len(page) for page in found] == [10, 10, 5]
    assert [name for page in found for name in page] == [f"t{number:02}" for number in range(25)]


def test_cursor_with_only_a_name_starts_after_it() -> None:
    topics = registry(*map(record, "abc"))
    for name, expected in (("b", ["c"]), ("bb", ["c"]), ("", ["a", "b", "c"]), ("c", [])):
        cursor = pb.TopicCursor(topic=name)
        page = fill(all_items(topics, cursor, internal=False), cursor, Bounds(ENTRIES), describe)
        assert [info.name for info in page.infos] == expected


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 40), max_size=12),
    st.integers(1, 20),
    st.integers(1, 600),
)
def test_pages_cover_everything_exactly_once(topics: dict[str, int], entries: int, size_bytes: int) -> None:
    pages = read(
        registry(*(record(name, count) for name, count in topics.items())), Bounds(entries, size_bytes=size_bytes)
    )
    found: dict[str, list[int]] = {}
    for page in pages:
        for name, partitions in page:
            found.setdefault(name, []).extend(partitions)
    assert list(found.items()) == [(name, list(range(topics[name]))) for name in sorted(topics)]
