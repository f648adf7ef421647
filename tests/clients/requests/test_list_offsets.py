from __future__ import annotations

from typing import Literal

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client
from tidelog.cluster.routing import Router
from tidelog.errors import BadReplyError, OffsetOutOfRangeError
from tidelog.model import TopicPartition
from tidelog.requests import committed_positions, fetch_and_commit, list_offsets
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame


async def test_answer_with_too_few_results_is_refused(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = pb.Envelope(list_offsets_reply=pb.ListOffsetsReply())
    monkeypatch.setattr(FakeConnection, "on_list_offsets", lambda peer, frame: peer.reply(frame, empty))
    with pytest.raises(BadReplyError, match="0 results for 4 entries"):
        await list_offsets.list_offsets(router, "wide", "latest", None)
    assert node.requests.count("list_offsets") > 1, "retried on a new connection"


@pytest.mark.parametrize("at", ["latest", "earliest"])
async def test_replica_of_a_later_epoch_that_lags_behind_an_answered_end_is_asked_again(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch, at: Literal["latest", "earliest"]
) -> None:
    node.reach("wide", 5)
    await fetch_and_commit.fetch(router, "wide", 0, 5)  # the end is 5 in epoch 0
    end = pb.ListOffsetsResult(offset=7 if at == "latest" else 0, high_watermark=7, epoch=9)
    told = pb.Envelope(list_offsets_reply=pb.ListOffsetsReply(results=[end]))
    monkeypatch.setattr(FakeConnection, "on_list_offsets", lambda peer, frame: peer.reply(frame, told))
    await list_offsets.list_offsets(router, "wide", at, [0])
    answers = [pb.FetchResult(next_offset=6, high_watermark=6, epoch=9)] * 2
    answers += [pb.FetchResult(next_offset=7, high_watermark=7, epoch=9)]

    def on_fetch(peer: FakeConnection, frame: Frame) -> None:
        peer.reply(frame, pb.Envelope(fetch_reply=pb.FetchReply(results=[answers.pop(0)])))

    monkeypatch.setattr(FakeConnection, "on_fetch", on_fetch)
    assert (await fetch_and_commit.fetch(router, "wide", 0, 6)).next_offset == 7


async def test_commit_refuses_only_positions_beyond_the_end(node: FakeNode, router: Router) -> None:
    node.reach("wide", 5)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"wide/1: offset 6 is beyond the end of the log, 5.*partition 0"
    ) as no:
        await fetch_and_commit.commit(router, "g", "wide", {0: 5, 1: 6}, reset=False, note="")
    assert (no.value.log_start_offset, no.value.high_watermark) == (0, 5)
    assert {each.partition: each.next_offset for each in await committed_positions.committed(router, "g", "wide")} == {
        0: 5
    }
    with pytest.raises(OffsetOutOfRangeError):
        await fetch_and_commit.commit(router, "g", "wide", {2: 6}, reset=True, note="")


async def test_end_is_requested_only_beyond_the_known_end(node: FakeNode, router: Router) -> None:
    node.reach("wide", 5)
    for offset in (3, 5, 4):
        await fetch_and_commit.commit(router, "g", "wide", {0: offset}, reset=True, note="")
    assert node.requests.count("list_offsets") == 1
    node.reach("wide", 9)
    await fetch_and_commit.fetch(router, "wide", 0, 9)
    await fetch_and_commit.commit(router, "g", "wide", {0: 9}, reset=True, note="")
    assert node.requests.count("list_offsets") == 1, "the fetch returned the end"


async def test_commit_of_consumed_records_requests_no_end(node: FakeNode) -> None:
    async with Client(f"127.0.0.1:{node.port}") as client, client.producer("t") as producer:
        await producer.send_many([b"x"] * 3)
    async with Client(f"127.0.0.1:{node.port}") as client:
        async with client.consumer("t", group="g", partitions=[0], start=0) as consumer:
            assert len(await consumer.poll(3, timeout_s=20)) == 3
            assert (await consumer.commit())[TopicPartition("t", 0)].next_offset == 3
        assert "list_offsets" not in node.requests


async def test_position_is_committed_if_no_owner_answers(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "END_CHECK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(FakeConnection, "on_list_offsets", lambda peer, frame: None)
    await fetch_and_commit.commit(router, "g", "t", {0: 7}, reset=False, note="")
    assert [each.next_offset for each in await committed_positions.committed(router, "g", "t")] == [7]


async def test_owner_with_an_open_connection_is_found_without_a_task_for_each_partition(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.reach("wide", 5)
    first = await list_offsets.list_offsets(router, "wide", "latest", None)

    async def connecting(*_: object) -> None:
        raise AssertionError("a task for one partition")

    monkeypatch.setattr(Router, "reading_connection", connecting)
    assert await list_offsets.list_offsets(router, "wide", "latest", None) == first
    assert len(first) == 4
