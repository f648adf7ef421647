"""Deletion of records: requests, local refusals, and reports of partial results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client
from tidelog.errors import (
    ForbiddenError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.requests import paging
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

US = 1_000_000


class Deletions:
    """The requests that a fake node received, and scripted refusals for the next entries of a partition."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.before: list[int] = []
        self.refusals: dict[int, list[ProtocolError]] = {}
        self.behind: Callable[[], None] = lambda: None
        """Called behind each answer."""

    def answer(self, connection: FakeConnection, frame: Frame) -> None:
        entries = frame.envelope.delete_records.entries
        self.asked.append([entry.partition for entry in entries])
        self.before += [getattr(entry, entry.WhichOneof("before") or "offset") for entry in entries]
        reply = pb.DeleteRecordsReply()
        for entry in entries:
            refusal = connection.refusal(entry.topic_id, entry.partition)
            scripted = self.refusals.get(entry.partition)
            if refusal is None and scripted:
                refusal = scripted.pop(0).to_message()
            if refusal is not None:
                reply.results.add(error=refusal)
            else:
                reply.results.add(log_start_offset=10 + entry.partition)
        connection.reply(frame, pb.Envelope(delete_records_reply=reply))
        self.behind()


@pytest.fixture
def deletions(monkeypatch: pytest.MonkeyPatch) -> Deletions:
    found = Deletions()

    def answer(connection: FakeConnection, frame: Frame) -> None:
        found.answer(connection, frame)

    monkeypatch.setattr(FakeConnection, "on_delete_records", answer, raising=False)
    monkeypatch.setattr(paging, "ENTRIES_PER_REQUEST_MAX", 2)
    return found


def moment(year: int, **how: Any) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC, **how)


async def test_many_partitions_need_several_requests_and_results_are_in_order(
    node: FakeNode, client: Client, deletions: Deletions
) -> None:
    node.add_topic("t", partitions=5)
    assert list((await client.delete_records("t", moment(2026))).items()) == [(each, 10 + each) for each in range(5)]
    assert deletions.asked == [[0, 1], [2, 3], [4]]
    assert await client.delete_records("t", 7, [4, 1, 4, 0]) == {4: 14, 1: 11, 0: 10}
    assert deletions.asked[3:] == [[4, 1], [0]]
    assert deletions.before[5:] == [7, 7, 7]
    assert await client.delete_records("t", moment(2026), []) == {}


async def test_refusal_reports_completed_partitions(node: FakeNode, client: Client, deletions: Deletions) -> None:
    node.add_topic("t", partitions=5)
    deletions.refusals[2] = [ProtocolError(pb.FORBIDDEN, "t is on hold")]
    with pytest.raises(ForbiddenError) as refused:
        await client.delete_records("t", moment(2026))
    assert str(refused.value) == "t is on hold; deleted nevertheless: partitions 0 to 1, 3 to 4"
    assert refused.value.done == {0: 10, 1: 11, 3: 13, 4: 14}
    assert not refused.value.definite, "something was deleted"
    with pytest.raises(InvalidRequestError) as nothing:
        await client.delete_records("t", 7)
    assert (nothing.value.done, nothing.value.definite) == ({}, True)


async def test_only_failed_partitions_are_retried(node: FakeNode, client: Client, deletions: Deletions) -> None:
    node.add_topic("t", partitions=4)
    deletions.refusals[1] = [ProtocolError(pb.EPOCH_CHANGING, "in a moment", retry_after_ms=1)] * 2
    assert await client.delete_records("t", moment(2026)) == {each: 10 + each for each in range(4)}
    assert deletions.asked == [[0, 1], [2, 3], [1], [1]]


async def test_results_of_a_deleted_topic_do_not_count_for_its_successor(
    node: FakeNode, client: Client, deletions: Deletions
) -> None:
    node.add_topic("t", partitions=4)
    deletions.refusals[1] = [ProtocolError(pb.EPOCH_CHANGING, "in a moment", retry_after_ms=1)]

    def made_again() -> None:
        if len(deletions.asked) == 2:
            node.add_topic("t", partitions=4, topic_id=b"new".ljust(16))

    deletions.behind = made_again
    assert await client.delete_records("t", moment(2026)) == {each: 10 + each for each in range(4)}
    assert deletions.asked == [[0, 1], [2, 3], [0, 1], [2, 3]]


async def test_partitions_added_meanwhile_are_included(node: FakeNode, client: Client, deletions: Deletions) -> None:
    node.add_topic("t", partitions=1)
    assert await client.delete_records("t", 5) == {0: 10}, "with a single partition an offset is enough"
    deletions.refusals[0] = [ProtocolError(pb.EPOCH_CHANGING, "in a moment", retry_after_ms=1)]
    deletions.behind = lambda: void(node.add_topic("t", partitions=3))
    assert await client.delete_records("t", moment(2026)) == {0: 10, 1: 11, 2: 12}
    with pytest.raises(InvalidRequestError, match="3 partitions, and offset 5 cannot apply to all: pass partitions="):
        await client.delete_records("t", 5)
    node.add_topic("t", partitions=6)
    assert await client.delete_records("t", 5, [5]) == {5: 15}, "a partition that this client does not know"


def void(_: object) -> None:
    return None


@pytest.mark.parametrize("partition", [3, -1, 2**32, -(2**70)])
async def test_unknown_partition_is_refused_before_any_request(
    node: FakeNode, client: Client, deletions: Deletions, partition: int
) -> None:
    node.add_topic("t", partitions=3)
    with pytest.raises(UnknownPartitionError, match="partitions 0 to 2"):
        await client.delete_records("t", 5, [0, partition])
    assert deletions.asked == []


@pytest.mark.parametrize(
    ("before", "what"),
    [
        (-1, ">= 0"),
        (2**63, "< 2"),
        (True, "an offset or a datetime"),
        (None, "an offset or a datetime"),
        ("2026-01-01", "an offset or a datetime"),
        (1.5, "an offset or a datetime"),
        (date(2026, 1, 1), "an offset or a datetime"),
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001 - a datetime without a zone is refused
    ],
)
async def test_invalid_position_is_refused_before_any_request(
    node: FakeNode, client: Client, deletions: Deletions, before: Any, what: str
) -> None:
    node.add_topic("t")
    with pytest.raises(InvalidRequestError, match=what):
        await client.delete_records("t", before)
    assert (deletions.asked, node.requests) == ([], [])


async def test_distant_times_are_sent_unchanged(node: FakeNode, client: Client, deletions: Deletions) -> None:
    node.add_topic("t")
    east = timezone(timedelta(hours=14))
    for before in (
        datetime(1, 1, 1, tzinfo=east),
        moment(1969),
        moment(2026),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(-timedelta(hours=12))),
    ):
        await client.delete_records("t", before)
    assert deletions.before == [
        -62_135_596_800 * US - 14 * 3600 * US,
        -31_536_000 * US,
        1_767_225_600 * US,
        253_402_300_800 * US - 1 + 12 * 3600 * US,
    ]


async def test_node_errors_keep_their_attributes(node: FakeNode, client: Client, deletions: Deletions) -> None:
    node.add_topic("t")
    deletions.refusals[0] = [
        ProtocolError(pb.OFFSET_OUT_OF_RANGE, "the log ends at 9", log_start_offset=3, high_watermark=9)
    ]
    with pytest.raises(OffsetOutOfRangeError) as behind:
        await client.delete_records("t", 10)
    assert (behind.value.log_start_offset, behind.value.high_watermark) == (3, 9)
    with pytest.raises(UnknownTopicError):
        await client.delete_records("nowhere", 1)
    with pytest.raises(UnknownTopicError):
        await client.delete_records("nowhere", 1, [0])
