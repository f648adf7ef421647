"""Requests about more partitions than one message may name: how many are sent, and how answers are merged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode
from tests.clients.sharing import until

from tidelog import Client
from tidelog.errors import InvalidRequestError, NotOwnerError
from tidelog.model import TopicPartition
from tidelog.requests import list_offsets, paging
from tidelog.subscriptions import subscription_keeper
from tidelog.subscriptions.resubscribe_backoff import ResubscribeBackoff
from tidelog.subscriptions.subscription import Subscription
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX
from tidelog_proto.wire.frames import Frame


def test_bound_equals_the_protocols() -> None:
    parts = list(paging.in_requests(list(range(2 * ENTRIES_PER_REQUEST_MAX + 1))))
    assert [len(part) for part in parts] == [ENTRIES_PER_REQUEST_MAX, ENTRIES_PER_REQUEST_MAX, 1]
    assert [part[0] for part in parts] == [0, ENTRIES_PER_REQUEST_MAX, 2 * ENTRIES_PER_REQUEST_MAX]
    assert list(paging.in_requests([])) == []


class Asked:
    """The partitions of each request, and scripted errors for the next entry of some of them."""

    def __init__(self) -> None:
        self.commits: list[list[int]] = []
        self.offsets: list[list[int]] = []
        self.refusals: dict[int, list[ProtocolError]] = {}

    def refused(self, partition: int) -> pb.Error | None:
        scripted = self.refusals.get(partition)
        return scripted.pop(0).to_message() if scripted else None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    on_offsets = FakeConnection.on_list_offsets
    on_commit = FakeConnection.on_commit

    def commit(connection: FakeConnection, frame: Frame) -> None:
        entries = frame.envelope.commit.entries
        found.commits.append([entry.partition for entry in entries])
        refused = {entry.partition: found.refused(entry.partition) for entry in entries}
        if not any(refused.values()):
            on_commit(connection, frame)
            return
        reply = pb.CommitReply()
        for entry in entries:
            error = refused[entry.partition]
            stored = pb.CommittedResult(
                topic_id=entry.topic_id, partition=entry.partition, found=True, next_offset=entry.next_offset
            )
            reply.results.append(stored if error is None else pb.CommittedResult(error=error))
        connection.reply(frame, pb.Envelope(commit_reply=reply))

    def offsets(connection: FakeConnection, frame: Frame) -> None:
        partitions = [entry.partition for entry in frame.envelope.list_offsets.entries]
        found.offsets.append(partitions)
        refused = [found.refused(partition) for partition in partitions]
        if not any(refused):
            on_offsets(connection, frame)
            return
        results = [
            pb.ListOffsetsResult(offset=partition) if error is None else pb.ListOffsetsResult(error=error)
            for partition, error in zip(partitions, refused, strict=True)
        ]
        connection.reply(frame, pb.Envelope(list_offsets_reply=pb.ListOffsetsReply(results=results)))

    monkeypatch.setattr(FakeConnection, "on_commit", commit)
    monkeypatch.setattr(FakeConnection, "on_list_offsets", offsets)
    monkeypatch.setattr(paging, "ENTRIES_PER_REQUEST_MAX", 2)
    monkeypatch.setattr(list_offsets, "OFFSETS_PER_REQUEST", 2)
    return found


async def know_ends(node: FakeNode, client: Client, end_offset: int) -> None:
    """Set the log ends at the node and in the client, which refuses to commit beyond known ends."""
    node.reach("t", end_offset)
    await client.list_offsets("t", "latest")


async def test_positions_of_many_partitions_are_committed_by_several_requests(
    node: FakeNode, client: Client, asked: Asked
) -> None:
    node.add_topic("t", partitions=5)
    await know_ends(node, client, 200)
    positions = {partition: 100 + partition for partition in (4, 0, 3, 1, 2)}
    stored = await client.commit("g", "t", positions)
    assert asked.commits == [[4, 0], [3, 1], [2]]
    assert {partition: one.next_offset for partition, one in stored.items()} == positions
    assert list(stored) == list(positions)
    held = await client.committed("g", "t")
    assert {one.partition: one.next_offset for one in held} == positions


async def test_refused_commit_reports_committed_partitions(node: FakeNode, client: Client, asked: Asked) -> None:
    node.add_topic("t", partitions=6)
    await know_ends(node, client, 7)
    asked.refusals[2] = [ProtocolError(pb.INVALID_REQUEST, "that would be one position too many")]
    with pytest.raises(
        InvalidRequestError, match=r"too many; committed nevertheless: partitions 0 to 1, 3$"
    ) as refused:
        await client.commit("g", "t", dict.fromkeys(range(6), 7))
    assert asked.commits == [[0, 1], [2, 3]], "no further request was sent"
    assert {each: one.next_offset for each, one in refused.value.done.items()} == {0: 7, 1: 7, 3: 7}  # type: ignore[attr-defined] # of `Committed`
    assert not refused.value.definite


@pytest.mark.parametrize("reset", [False, True])
async def test_retry_omits_committed_partitions(node: FakeNode, client: Client, asked: Asked, reset: bool) -> None:
    node.add_topic("t", partitions=4)
    await know_ends(node, client, 7)
    asked.refusals[3] = [ProtocolError(pb.EPOCH_CHANGING, "in a moment", retry_after_ms=1)]
    stored = await client.commit("g", "t", dict.fromkeys(range(4), 7), reset=reset)
    assert asked.commits == [[0, 1], [2, 3], [3]], "a repeated reset could undo a newer one"
    assert list(stored) == [0, 1, 2, 3]


async def test_offsets_of_many_partitions_are_found_by_several_requests(
    node: FakeNode, client: Client, asked: Asked
) -> None:
    node.add_topic("t", partitions=5)
    found = await client.list_offsets("t", "latest")
    assert (list(found), sorted(asked.offsets)) == ([0, 1, 2, 3, 4], [[0, 1], [2, 3], [4]])
    asked.offsets.clear()
    assert list(await client.list_offsets("t", "earliest", [4, 2, 0, 1])) == [4, 2, 0, 1]
    assert sorted(asked.offsets) == [[0, 1], [4, 2]]


async def test_found_offsets_are_not_requested_again_and_failures_are_raised(
    node: FakeNode, client: Client, asked: Asked
) -> None:
    node.add_topic("t", partitions=4)
    asked.refusals[1] = [ProtocolError(pb.NOT_OWNER, "not here", retry_after_ms=1)]
    assert list(await client.list_offsets("t", "latest")) == [0, 1, 2, 3]
    assert (sorted(asked.offsets[:2]), asked.offsets[2:]) == ([[0, 1], [2, 3]], [[1]])
    asked.refusals[2] = [ProtocolError(pb.INVALID_REQUEST, "no such point")]
    asked.refusals[0] = [ProtocolError(pb.NOT_OWNER, "not here")]
    with pytest.raises(InvalidRequestError, match="no such point"):
        await client.list_offsets("t", "latest")
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as hurried:
        asked.refusals[3] = [ProtocolError(pb.NOT_OWNER, "not here")] * 1000
        with pytest.raises(NotOwnerError):
            await hurried.list_offsets("t", "latest")


async def test_a_consumer_of_many_partitions_subscribes_by_several_requests_and_reads_all(
    node: FakeNode, client: Client, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_keeper, "PARTITIONS_PER_SUBSCRIPTION", 2)
    node.add_topic("t", partitions=5)
    async with client.producer("t") as producer:
        for partition in range(5):
            await producer.send(b"%d" % partition, partition=partition)
    async with client.consumer("t", start="earliest") as consumer, asyncio.timeout(10):
        read = [await anext(consumer) for _ in range(5)]
    assert sorted((record.partition, record.value) for record in read) == [(each, b"%d" % each) for each in range(5)]
    assert node.requests.count("subscribe") >= 3  # unused credit is reclaimed by resubscribing
    assert all(len(part) <= 2 for part in asked.offsets)


async def test_consumer_of_many_partitions_lets_other_work_run_while_it_subscribes(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 3 * subscription_keeper.PARTITIONS_PER_SUBSCRIPTION
    node.add_topic("t", partitions=partitions)
    tried, subscribed = ResubscribeBackoff.tried, Subscription.__init__
    turns: list[int] = []
    in_turn = 0
    sizes: list[int] = []

    def ended() -> None:
        nonlocal in_turn
        turns.append(in_turn)
        in_turn = 0

    def noting(self: ResubscribeBackoff, where: TopicPartition, now: float) -> None:
        nonlocal in_turn
        if not in_turn:
            asyncio.get_running_loop().call_soon(ended)
        in_turn += 1
        tried(self, where, now)

    def noting_size(self: Subscription, *args: Any, **more: Any) -> None:
        sizes.append(len(args[1]))
        subscribed(self, *args, **more)

    monkeypatch.setattr(ResubscribeBackoff, "tried", noting)
    monkeypatch.setattr(Subscription, "__init__", noting_size)
    async with client.consumer("t", start="earliest"):
        await until(lambda: sum(sizes) >= partitions)
    assert sum(turns) >= partitions
    assert max(turns) <= 2 * paging.SLICE_ENTRIES
    assert sizes == [subscription_keeper.PARTITIONS_PER_SUBSCRIPTION] * 3
