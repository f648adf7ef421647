from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.errors import BadReplyError
from tidelog.requests.paging import SLICE_ENTRIES, MergedTopics, in_slices, pages
from tidelog_proto import broker_pb2 as pb


def part(name: str, *partitions: int, topic_id: bytes = b"t") -> pb.TopicInfo:
    infos = [pb.PartitionInfo(partition=index) for index in partitions]
    return pb.TopicInfo(name=name, topic_id=topic_id, partitions=infos)


def answering(*replies: pb.TopicReply) -> tuple[list[str], Callable[[pb.TopicCursor | None], Awaitable[pb.TopicReply]]]:
    asked: list[str] = []
    left = list(replies)

    async def ask(cursor: pb.TopicCursor | None) -> pb.TopicReply:
        asked.append("" if cursor is None else cursor.topic)
        return left.pop(0) if len(left) > 1 else left[0]

    return asked, ask


def test_topic_is_merged_from_pages() -> None:
    merged = MergedTopics()
    merged.add([part("a", 0, 1), part("b", 0)])
    merged.add([part("b", 1, 2), part("c", 0)])
    assert [(one.name, [p.partition for p in one.partitions]) for one in merged.topics()] == [
        ("a", [0, 1]),
        ("b", [0, 1, 2]),
        ("c", [0]),
    ]


def test_topic_recreated_between_pages_replaces_the_old_one() -> None:
    merged = MergedTopics()
    merged.add([part("a", 0, 1)])
    merged.add([part("a", 0, topic_id=b"new")])
    (one,) = merged.topics()
    assert (one.topic_id, len(one.partitions)) == (b"new", 1)


async def test_pages_are_requested_until_the_last() -> None:
    asked, ask = answering(
        pb.TopicReply(topics=[part("a", 0)], next=pb.TopicCursor(topic="a")),
        pb.TopicReply(next=pb.TopicCursor(topic="b")),
        pb.TopicReply(topics=[part("c", 0)]),
    )
    assert [[one.name for one in page.topics] async for page in pages(ask)] == [["a"], [], ["c"]]
    assert asked == ["", "a", "b"]


async def test_repeated_page_is_refused() -> None:
    _, ask = answering(pb.TopicReply(topics=[part("a", 0)], next=pb.TopicCursor(topic="a")))
    with pytest.raises(BadReplyError):
        async for _ in pages(ask):
            pass


@pytest.mark.parametrize("count", [0, 1, SLICE_ENTRIES, 3 * SLICE_ENTRIES + 1])
async def test_other_work_runs_between_the_slices_of_many_entries(count: int) -> None:
    turns, ended = 0, asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    slices = [part async for part in in_slices(list(range(count)))]
    assert turns >= len(slices) - 1
    assert [entry for part in slices for entry in part] == list(range(count))
    assert all(len(part) <= SLICE_ENTRIES for part in slices)
    ended.set()
    await running
