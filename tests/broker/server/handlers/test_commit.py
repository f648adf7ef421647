from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.group_member import GroupMember
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog import Client
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import commit as commit_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import NOTE_BYTES_MAX


async def topic_with(peer: Peer, records: int = 10, name: str = "t") -> bytes:
    topic = await peer.create(name)
    await peer.publish(topic.topic_id, batch(*[b"x"] * records))
    return topic.topic_id


def commit_of(topic_id: bytes, next_offset: int, *, group: str = "g", note: str = "", reset: bool = False) -> pb.Commit:
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=next_offset, note=note)
    return pb.Commit(group=group, reset=reset, entries=[entry])


async def commit(peer: Peer, topic_id: bytes, next_offset: int, **how: object) -> pb.CommittedResult:
    request = commit_of(topic_id, next_offset, **how)  # type: ignore[arg-type]  # named as there
    return (await peer.ask(commit=request)).envelope.commit_reply.results[0]


async def committed(peer: Peer, group: str = "g", *topic_ids: bytes) -> list[pb.CommittedResult]:
    entries = [pb.CommittedEntry(topic_id=topic_id) for topic_id in topic_ids]
    frame = await peer.ask(committed=pb.Committed(group=group, entries=entries))
    return list(frame.envelope.committed_reply.results)


async def position(peer: Peer, topic_id: bytes, group: str = "g") -> int | None:
    (result,) = await committed(peer, group, topic_id)
    return result.next_offset if result.found else None


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_commit_survives_a_restart(stand: Stand, end: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = await topic_with(peer)
    reply = await commit(peer, topic_id, 7, note="as far as seven")
    assert (reply.found, reply.next_offset, reply.note) == (True, 7, "as far as seven")
    await getattr(stand, end)()
    await stand.start()
    peer = await stand.peer()
    (result,) = await committed(peer)
    reply.topic = "t"
    assert result == reply
    assert result.commit_timestamp_us > 0


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_commit_is_accepted_right_after_a_start(stand: Stand, end: str) -> None:
    """The partition is not open yet; its unknown end does not cause a refusal."""
    await stand.start()
    topic_id = await topic_with(await stand.peer())
    await getattr(stand, end)()
    await stand.start()
    peer = await stand.peer()
    assert (await commit(peer, topic_id, 11)).error.code == pb.OFFSET_OUT_OF_RANGE
    assert (await commit(peer, topic_id, 10)).next_offset == 10


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize("founders", [("a",), ("a", "b", "c")], ids=["one founder", "three founders"])
async def test_commit_on_a_single_copy_is_accepted_right_after_a_start(
    tmp_path: Path, founders: tuple[str, ...], end: str
) -> None:
    cluster = Founded(tmp_path, founders)
    try:
        await cluster.found()
        await cluster.settled()
        peer = await cluster.peer("a")
        topic_id = (await peer.create(replication_factor=1)).topic_id
        await cluster.publish(peer, topic_id, *[b"x"] * 10)
        owner = cluster.owner((topic_id, 0), "a")
        for name in founders:
            await getattr(cluster, end)(name)
        await cluster.found()
        await cluster.settled()
        peer = await cluster.peer(owner)
        for number in range(20):  # some of the groups are coordinated by the owner of the partition
            assert (await commit(peer, topic_id, 10, group=f"g{number}")).next_offset == 10
    finally:
        await cluster.close()


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_commit_is_accepted_while_the_log_end_is_unknown(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await stand.start()
    topic_id = await topic_with(await stand.peer())
    await getattr(stand, end)()
    monkeypatch.setattr(commit_module, "OWNER_S", 0)
    await stand.start()
    assert (await commit(await stand.peer(), topic_id, 10)).next_offset == 10


async def test_commit_is_durable_before_its_reply(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic_id = await topic_with(peer)
    await commit(peer, topic_id, 1)
    stand.disk.hold("sync")
    number = peer.post(commit=commit_of(topic_id, 5))
    await stand.disk.held_up()
    assert await position(peer, topic_id) == 1
    assert not peer.answered(number)
    stand.disk.heal()
    await peer.reply(number)
    assert await position(peer, topic_id) == 5
    assert len(node.broker.groups.of("g").positions) == 1


async def test_position_goes_back_only_by_a_reset(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await topic_with(peer)
    assert (await commit(peer, topic_id, 7)).next_offset == 7
    assert (await commit(peer, topic_id, 3)).next_offset == 7
    assert (await commit(peer, topic_id, 3, reset=True)).next_offset == 3
    assert (await commit(peer, topic_id, 4, group="other")).next_offset == 4
    await stand.restart()
    peer = await stand.peer()
    assert await position(peer, topic_id) == 3
    assert await position(peer, topic_id, "other") == 4


async def test_concurrent_commits_keep_the_highest_position(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await topic_with(peer, 100)
    others = [peer, await stand.peer(), await stand.peer()]
    stand.disk.hold("sync")
    offsets = [50, 20, 90, 90, 10, 70]
    numbers = [
        (others[index % 3], others[index % 3].post(commit=commit_of(topic_id, offset)), offset)
        for index, offset in enumerate(offsets)
    ]
    await stand.disk.held_up()
    stand.disk.heal()
    for who, number, offset in numbers:
        result = (await who.reply(number)).envelope.commit_reply.results[0]
        assert result.found
        assert result.next_offset >= offset
    assert await position(peer, topic_id) == 90
    await stand.crash()
    await stand.start()
    assert await position(await stand.peer(), topic_id) == 90


async def test_position_stores_the_epoch_of_its_record(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic_id = await topic_with(peer)

    async def kept(next_offset: int, record_epoch: int | None) -> int | None:
        entry = pb.CommitEntry(topic_id=topic_id, next_offset=next_offset, record_epoch=record_epoch)
        (stored,) = (await peer.ask(commit=pb.Commit(group="g", entries=[entry]))).envelope.commit_reply.results
        (read,) = await committed(peer, "g", topic_id)
        assert read == stored
        return read.record_epoch if read.HasField("record_epoch") else None

    assert await kept(3, 0) == 0
    assert await kept(2, 9) == 0, "the older commit changes nothing"
    assert await kept(4, None) is None
    assert await kept(5, 2) == 2
    await stand.restart()
    (result,) = await committed(await stand.peer(), "g", topic_id)
    assert (result.next_offset, result.record_epoch) == (5, 2)


async def test_invalid_entries_are_refused_individually(peer: Peer) -> None:
    topic_id = await topic_with(peer)
    entries = [
        pb.CommitEntry(topic_id=topic_id, next_offset=11),
        pb.CommitEntry(topic_id=b"?" * 16, next_offset=1),
        pb.CommitEntry(topic_id=topic_id, partition=1, next_offset=0),
        pb.CommitEntry(topic_id=topic_id, next_offset=1, note="x" * (NOTE_BYTES_MAX + 1)),
        pb.CommitEntry(topic_id=topic_id, next_offset=10),
    ]
    results = (await peer.ask(commit=pb.Commit(group="g", entries=entries))).envelope.commit_reply.results
    codes = [result.error.code for result in results]
    assert codes == [pb.OFFSET_OUT_OF_RANGE, pb.UNKNOWN_TOPIC, pb.UNKNOWN_PARTITION, pb.INVALID_REQUEST, 0]
    assert results[0].error.high_watermark == 10
    assert await position(peer, topic_id) == 10


@pytest.mark.parametrize("group", ["", "x" * 256, "a\nb"])
async def test_invalid_group_names_are_refused(peer: Peer, group: str) -> None:
    topic_id = await topic_with(peer)
    assert (await peer.refused(commit=commit_of(topic_id, 1, group=group))).code == pb.INVALID_REQUEST
    assert (await peer.refused(committed=pb.Committed(group=group))).code == pb.INVALID_REQUEST


async def test_commit_without_entries_is_refused(peer: Peer) -> None:
    assert (await peer.refused(commit=pb.Commit(group="g"))).code == pb.INVALID_REQUEST


async def test_uncommitted_position_is_not_found(peer: Peer) -> None:
    topic_id = await topic_with(peer)
    assert await committed(peer, "nobody") == []
    assert await position(peer, topic_id, "nobody") is None


async def test_commit_is_refused_when_its_topic_is_deleted_meanwhile(stand: Stand, node: Node, peer: Peer) -> None:
    """The record is durable and not applied; the answer must not be the position before it."""
    topic_id = await topic_with(peer)
    await commit(peer, topic_id, 3)
    stand.disk.hold("sync", "__offsets")
    number = peer.post(commit=commit_of(topic_id, 7))
    await stand.disk.held_up()
    deleted = pb.TopicRecord()
    deleted.CopyFrom(node.broker.topics.named("t"))
    deleted.revision += 1
    deleted.deleted = True
    assert node.broker.topics.apply(deleted)  # its positions are forgotten a moment later
    stand.disk.heal()
    (result,) = (await peer.reply(number)).envelope.commit_reply.results
    assert (result.error.code, result.found) == (pb.UNKNOWN_TOPIC, False)


async def test_topic_deletion_deletes_positions(stand: Stand, node: Node, peer: Peer) -> None:
    gone, stays = await topic_with(peer), await topic_with(peer, name="u")
    await commit(peer, gone, 5)
    await commit(peer, stays, 6)
    await peer.delete("t")
    assert [result.topic_id for result in await committed(peer)] == [stays]
    await stand.restart()
    assert [result.topic_id for result in await committed(await stand.peer())] == [stays]


async def test_commit_after_the_topic_deletion_is_dropped(stand: Stand, node: Node, peer: Peer) -> None:
    """The commit is on its way to the disk when its topic goes: it must not bring a position back."""
    gone, stays = await topic_with(peer), await topic_with(peer, name="u")
    await commit(peer, stays, 1)
    stand.disk.hold("sync", "__offsets")
    committing = await stand.peer()
    entries = [pb.CommitEntry(topic_id=gone, next_offset=5), pb.CommitEntry(topic_id=stays, next_offset=1)]
    number = committing.post(commit=pb.Commit(group="g", entries=entries))
    await stand.disk.held_up()
    deletion = asyncio.create_task(peer.delete("t"))
    await asyncio.wait([deletion], timeout=0.2)  # the two may share an I/O worker: then it waits for the gate
    stand.disk.heal()
    await deletion
    lost, kept = (await committing.reply(number)).envelope.commit_reply.results
    assert (kept.found, kept.next_offset) == (True, 1)
    assert lost.found or lost.error.code == pb.UNKNOWN_TOPIC
    assert [result.topic_id for result in await committed(peer)] == [stays]
    assert not node.broker.groups.of("g").positions.is_committing("g")


async def test_full_disk_refuses_a_commit_and_keeps_the_position(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await topic_with(peer)
    await commit(peer, topic_id, 1)
    stand.disk.fill_up()
    note = "x" * NOTE_BYTES_MAX
    refused: pb.Error | None = None
    offset = 2
    for offset in range(2, 11):
        envelope = (await peer.ask(commit=commit_of(topic_id, offset, note=note))).envelope
        if envelope.HasField("error"):
            refused = envelope.error
            break
    assert refused is not None, "the disk took everything"
    assert (refused.code, refused.retriable, refused.definite) == (pb.DISK_FULL, True, True)
    assert await position(peer, topic_id) == offset - 1
    stand.disk.heal()
    assert (await commit(peer, topic_id, offset)).next_offset == offset


async def test_committed_by_topic_returns_all_its_partitions(peer: Peer) -> None:
    topic, other = await peer.create(partitions=3), await peer.create("other")
    for topic_id, partition in ((topic.topic_id, 0), (topic.topic_id, 2), (other.topic_id, 0)):
        entry = pb.CommitEntry(topic_id=topic_id, partition=partition, next_offset=0, note="here")
        await peer.ask(commit=pb.Commit(group="g", entries=[entry]))
    asked = pb.Committed(group="g", topic_id=topic.topic_id)
    results = (await peer.ask(committed=asked)).envelope.committed_reply.results
    assert {(one.topic_id, one.partition, one.note) for one in results} == {
        (topic.topic_id, 0, "here"),
        (topic.topic_id, 2, "here"),
    }


async def test_committed_of_a_deleted_topic_is_refused(peer: Peer) -> None:
    topic_id = await topic_with(peer)
    await commit(peer, topic_id, 7)
    await peer.delete("t")
    error = await peer.refused(committed=pb.Committed(group="g", topic_id=topic_id))
    assert (error.code, error.topic_id) == (pb.UNKNOWN_TOPIC, topic_id)


async def paged(peer: Peer, **asked: object) -> list[list[pb.CommittedResult]]:
    """Ask for positions page by page."""
    question = pb.Committed(group="g", **asked)  # type: ignore[arg-type]  # named as there
    pages: list[list[pb.CommittedResult]] = []
    while True:
        reply = (await peer.ask(committed=question)).envelope.committed_reply
        pages.append(list(reply.results))
        if not reply.HasField("last"):
            return pages
        question.after.CopyFrom(reply.last)


async def test_committed_is_paginated(peer: Peer) -> None:
    """Of 300 positions with the longest notes there are, which no envelope could hold."""
    topic = await peer.create("t", partitions=300)
    for first in range(0, 300, 100):
        entries = [
            pb.CommitEntry(topic_id=topic.topic_id, partition=index, note="n" * NOTE_BYTES_MAX)
            for index in range(first, first + 100)
        ]
        for result in (await peer.ask(commit=pb.Commit(group="g", entries=entries))).envelope.commit_reply.results:
            assert not result.HasField("error")
    pages = await paged(peer)
    assert len(pages) > 3
    assert [result.partition for page in pages for result in page] == list(range(300))
    assert {result.topic for page in pages for result in page} == {"t"}
    asked = [pb.CommittedEntry(topic_id=topic.topic_id, partition=index) for index in reversed(range(301))]
    pages = await paged(peer, entries=asked)
    assert len(pages) > 3
    assert [(result.partition, result.found) for page in pages for result in page] == [
        (index, index < 300) for index in reversed(range(301))
    ]


async def test_commit_with_an_oversized_answer_is_refused_before_the_write(peer: Peer) -> None:
    topic = await peer.create("t", partitions=300)
    for first in range(0, 300, 100):
        entries = [
            pb.CommitEntry(topic_id=topic.topic_id, partition=index, note="n" * NOTE_BYTES_MAX)
            for index in range(first, first + 100)
        ]
        await peer.ask(commit=pb.Commit(group="g", entries=entries))
    older = [pb.CommitEntry(topic_id=topic.topic_id, partition=index) for index in range(300)]
    assert (await peer.refused(commit=pb.Commit(group="g", entries=older))).code == pb.INVALID_REQUEST
    (page, *_) = await paged(peer)
    assert page[0].note


async def test_answer_limit_counts_the_bytes_of_notes(peer: Peer) -> None:
    topic = await peer.create("t", partitions=300)
    note = "€" * (NOTE_BYTES_MAX // 3)
    entries = [pb.CommitEntry(topic_id=topic.topic_id, partition=index, note=note) for index in range(250)]
    refused = await peer.refused(commit=pb.Commit(group="g", entries=entries))
    assert refused.code == pb.INVALID_REQUEST
    assert "answer" in refused.message


LARGE = 5


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a commit of five positions be large."""
    monkeypatch.setattr(commit_module, "LARGE_COMMIT", LARGE - 1)
    monkeypatch.setattr(commit_module, "ANSWERED_AT_ONCE", 2)


async def wide_topic(peer: Peer, name: str = "t") -> bytes:
    topic = await peer.create(name, partitions=LARGE)
    for partition in range(LARGE):
        await peer.publish(topic.topic_id, batch(*[b"x"] * 10), partition=partition)
    return topic.topic_id


def large_commit(topic_id: bytes, next_offset: int, **fields: Any) -> pb.Commit:
    entries = [
        pb.CommitEntry(topic_id=topic_id, partition=index, next_offset=next_offset, note=str(index), record_epoch=index)
        for index in range(LARGE)
    ]
    return pb.Commit(group="g", entries=entries, **fields)


def at_slices(node: Node, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` with the number of each slice before it begins."""
    turns, number = node.broker.bounds.turns, itertools.count()
    next_slice = turns.next_slice

    async def acted(*arguments: Any) -> None:
        await next_slice(*arguments)
        act(next(number))

    monkeypatch.setattr(turns, "next_slice", acted)


@pytest.mark.usefixtures("sliced")
async def test_large_commit_stores_each_position_of_the_newest_request(stand: Stand, node: Node) -> None:
    peer = await stand.peer()
    topic_id = await wide_topic(peer)
    for next_offset, stored in ((7, 7), (5, 7), (9, 9)):
        reply = (await peer.ask(commit=large_commit(topic_id, next_offset))).envelope.commit_reply
        assert [
            (result.partition, result.next_offset, result.note, result.record_epoch) for result in reply.results
        ] == [(index, stored, str(index), index) for index in range(LARGE)]
    before = list(node.broker.groups.of("g").positions.of_group("g"))
    assert {record.revision for record in before} == {2}, "the commit that moved nothing was not written"
    await stand.restart()
    await (await stand.peer()).ask(committed=pb.Committed(group="g"))
    assert list(stand.node.broker.groups.of("g").positions.of_group("g")) == before, "as the log has it"


@pytest.mark.usefixtures("sliced")
async def test_large_commit_writes_nothing_if_the_coordinator_changes_between_its_slices(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await wide_topic(peer)
    await peer.ask(commit=large_commit(topic_id, 3))
    shard = node.broker.groups.of("g")
    end = node.broker.partitions.get(*shard.key).state.high_watermark
    epoch = node.broker.partitions.get(*shard.key).state.epoch
    at_slices(node, monkeypatch, lambda number: shard.coordinator.begin(epoch + 1) if number == 0 else None)
    reply = (await peer.ask(commit=large_commit(topic_id, 8))).envelope.commit_reply
    assert {result.error.code for result in reply.results} == {pb.EPOCH_CHANGING}
    assert node.broker.partitions.get(*shard.key).state.high_watermark == end
    assert {record.next_offset for record in shard.positions.of_group("g")} == {3}
    assert not shard.positions.is_committing("g")


@pytest.mark.usefixtures("sliced")
async def test_large_commit_prepared_in_a_new_epoch_is_not_written_with_the_old_one(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await wide_topic(peer)
    await peer.ask(commit=large_commit(topic_id, 3))
    shard = node.broker.groups.of("g")
    coordinator_type, ready = type(shard.coordinator), type(shard.coordinator).ready

    async def earlier(coordinator: Any, *, confirmed: bool = False) -> int:
        return await ready(coordinator, confirmed=confirmed) - 1

    monkeypatch.setattr(coordinator_type, "ready", earlier)
    refused = await peer.refused(commit=large_commit(topic_id, 8))
    assert refused.code == pb.EPOCH_CHANGING
    assert {record.next_offset for record in shard.positions.of_group("g")} == {3}
    assert not shard.positions.is_committing("g")


@pytest.mark.usefixtures("sliced")
async def test_answer_to_a_large_commit_is_what_was_stored_after_its_write(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is made in slices, between which the group may be deleted or committed to."""
    topic_id = await wide_topic(peer)
    shard = node.broker.groups.of("g")

    def forget(_: int) -> None:
        if shard.positions.count_of("g"):
            shard.positions.forget_group("g")

    at_slices(node, monkeypatch, forget)
    reply = (await peer.ask(commit=large_commit(topic_id, 3))).envelope.commit_reply
    assert shard.positions.count_of("g") == 0, "there was a slice after the write"
    assert {(result.found, result.next_offset) for result in reply.results} == {(True, 3)}


@pytest.mark.usefixtures("sliced")
async def test_each_position_of_a_large_commit_without_permission_is_refused(node: Node, peer: Peer) -> None:
    topic_id = await wide_topic(peer)
    member = GroupMember(peer, "t")
    await member.ask()
    other = await wide_topic(peer, "u")
    for committed_id, member_id, code in (
        (topic_id, "", pb.GROUP_NOT_EMPTY),
        (topic_id, "unknown", pb.MEMBER_FENCED),
        (other, member.membership.member_id, pb.MEMBER_FENCED),
    ):
        request = large_commit(committed_id, 3, member_id=member_id, generation=1)
        reply = (await peer.ask(commit=request)).envelope.commit_reply
        assert {result.error.code for result in reply.results} == {code}
    assert f"partition 3 of topic {other.hex()} is not held" in reply.results[3].error.message
    assert node.broker.groups.of("g").positions.count_of("g") == 0


async def test_group_limit_refuses_new_groups_only(stand: Stand) -> None:
    await stand.start(groups_max=2, group_positions_max=2)
    peer = await stand.peer()
    topic = await peer.create("t", partitions=3)
    await peer.publish(topic.topic_id, batch(b"x", b"y"))
    for group in ("a", "b"):
        assert (await commit(peer, topic.topic_id, 1, group=group)).found
    refused = await commit(peer, topic.topic_id, 1, group="c")
    assert (refused.error.code, refused.error.retriable, refused.error.definite) == (pb.INVALID_REQUEST, False, True)
    assert (await commit(peer, topic.topic_id, 2, group="a")).next_offset == 2
    entries = [pb.CommitEntry(topic_id=topic.topic_id, partition=index) for index in (1, 2)]
    results = (await peer.ask(commit=pb.Commit(group="a", entries=entries))).envelope.commit_reply.results
    assert [result.error.code for result in results] == [0, pb.INVALID_REQUEST]
    assert [result.partition for result in await committed(peer, "a")] == [0, 1]
    await stand.restart(groups_max=1)
    peer = await stand.peer()
    assert await position(peer, topic.topic_id, "b") == 1, "a durable position is kept although the bound is lower now"


async def test_client_reads_all_pages_with_topic_names(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "PAGE_POSITIONS", 3)
    topics = [await peer.create(name, partitions=4) for name in ("a", "b", "c")]
    entries = [pb.CommitEntry(topic_id=topic.topic_id, partition=index) for topic in topics for index in range(4)]
    await peer.ask(commit=pb.Commit(group="g", entries=entries))
    assert len(await paged(peer)) == 4
    expected = [(name, index) for name in "abc" for index in range(4)]
    async with Client(f"127.0.0.1:{node.port}") as client:
        assert sorted((one.topic, one.partition) for one in await client.committed("g")) == expected
        assert [one.partition for one in await client.committed("g", "b")] == [0, 1, 2, 3]
        assert await client.committed("other") == []
