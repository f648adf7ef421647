"""Three nodes, one partition: the driver executes the core's effects with real logs and real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import KEY, NODES, TOPIC_ID, ClusterStand, bound_windows, others, started_cluster
from tests.broker.peer import Peer, batch
from tests.broker.stand import settled
from tests.broker.storage.build import read_all

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.replication import push_windows
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import KIB


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.INTERVAL, pb.NEVER])
async def test_published_records_are_on_every_replica(stand: ClusterStand, flush: pb.Flush) -> None:
    await stand.start(flush=flush)
    results = await stand.publish(b"a", b"b", b"c")
    assert [(one.base_offset, one.HasField("error")) for one in results] == [(0, False), (1, False), (2, False)]
    await stand.agree(b"a", b"b", b"c")


async def test_one_replica_may_be_down_and_catches_up(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    away = others(owner)[0]
    await stand.publish(b"a")
    await stand.crash(away)
    await stand.publish(b"b")
    await stand.publish(b"c")
    await stand.start(away)
    await stand.agree(b"a", b"b", b"c")


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_acknowledged_records_survive_a_takeover(stand: ClusterStand, end: str) -> None:
    await stand.start()
    first = await stand.owner()
    peer = await stand.peer(first)
    for number in range(5):
        await peer.publish(TOPIC_ID, batch(b"%d" % number, producer_id=7, sequence=number))
    await getattr(stand, end)(first)
    second = await stand.owner(but=first)
    peer = await stand.peer(second)
    (again,) = await peer.publish(TOPIC_ID, batch(b"4", producer_id=7, sequence=4))
    assert (again.duplicate, again.base_offset) == (True, 4), "the new owner knows what producers have sent"
    (gap,) = await peer.publish(TOPIC_ID, batch(b"6", producer_id=7, sequence=6))
    assert gap.error.code == pb.SEQUENCE_GAP
    (fresh,) = await peer.publish(TOPIC_ID, batch(b"5", producer_id=7, sequence=5))
    assert (fresh.base_offset, fresh.epoch) == (5, again.epoch + 1)
    await stand.start(first)
    await stand.agree(*(b"%d" % number for number in range(6)))


async def test_tail_without_a_quorum_is_truncated_and_its_publish_refused(stand: ClusterStand) -> None:
    """The owner is isolated with a record that no other node has: the others continue without it."""
    await stand.start()
    first = await stand.owner()
    await stand.publish(b"kept")
    peer = await stand.peer(first)
    stand.cut = {first}  # not detected yet
    lost = peer.post_publish(TOPIC_ID, batch(b"lost"))
    await settled(lambda: stand.partition(first).log.end_offset == 2, "the owner did not write it")
    stand.suspect(first)
    second = await stand.owner(but=first)
    await stand.publish(b"after", to=second)
    stand.isolate()
    (result,) = await peer.published(lost)
    assert (result.error.code, result.error.definite, result.error.retriable) == (pb.NOT_OWNER, True, True)
    assert result.error.epoch == stand.partition(second).state.epoch
    await stand.agree(b"kept", b"after")


async def test_tail_to_be_truncated_is_not_readable(stand: ClusterStand) -> None:
    """It hears of two epochs at once, the second committed past its old tail: the watermark is ahead of the disk."""
    await stand.start()
    first = await stand.owner()
    await stand.publish(b"kept")
    peer = await stand.peer(first)
    stand.cut = {first}
    for value in (b"lost", b"lost too"):
        peer.post_publish(TOPIC_ID, batch(value))
    await settled(lambda: stand.partition(first).log.end_offset == 3, "the owner did not write it")
    stand.suspect(first)
    second = await stand.owner(but=first)
    await stand.publish(b"1", b"2", b"3", to=second)
    epoch = stand.partition(second).state.epoch + 1
    stand.partition(second).driver.roll_over(Plan(second, (second, *others(second)), 2))
    await settled(lambda: stand.partition(second).state.epoch == epoch, "the epoch did not end")
    stand.disks[first].hold("write", "journal")  # decisions are written here first, so the truncation waits
    stand.isolate()
    await settled(lambda: stand.partition(first).state.high_watermark == 4, "the old owner did not learn what happened")
    await stand.disks[first].held_up()
    assert (stand.partition(first).driver.cut_offset, stand.partition(first).log.end_offset) == (1, 3)
    for offset in (1, 2):  # nothing, or an error that sends the reader to the owner, once the tail does not count
        frame = await peer.reply(peer.post_fetch(TOPIC_ID, offset))
        assert not frame.attachment
        assert frame.envelope.fetch_reply.results[0].next_offset == offset
    stand.disks[first].heal()
    await stand.agree(b"kept", b"1", b"2", b"3")


async def test_an_owner_without_a_quorum_refuses_and_serves_readers(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    stand.isolate(*others(owner))
    (refused,) = await stand.publish(b"b", to=owner)
    assert (refused.error.code, refused.error.definite, refused.error.retriable) == (pb.QUORUM_LOST, True, True)
    assert await stand.read(owner) == [b"a"]
    stand.isolate()
    await stand.publish(b"b")
    await stand.agree(b"a", b"b")


async def test_non_owner_answers_not_owner(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    for name in others(owner):
        (refused,) = await stand.publish(b"b", to=name)
        assert (refused.error.code, refused.error.epoch) == (pb.NOT_OWNER, stand.partition(owner).state.epoch)
    await stand.agree(b"a")


@pytest.mark.parametrize("acks", [pb.ONE, pb.QUORUM, pb.ALL])
async def test_publish_waits_for_the_requested_acks(stand: ClusterStand, acks: pb.Acks) -> None:
    """With one follower that does not write, two of three copies exist; with two such followers, one exists."""
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"0", acks=acks)
    held = others(owner)[: {pb.ONE: 2, pb.QUORUM: 1, pb.ALL: 0}[acks]]
    for name in held:
        stand.disks[name].hold("sync")
    (result,) = await stand.publish(b"1", to=owner, acks=acks)
    assert result.base_offset == 1
    if acks != pb.ONE:
        one_more = next(name for name in others(owner) if name not in held)
        stand.disks[one_more].hold("sync")
        peer = await stand.peer(owner)
        data = batch(b"2")
        entry = pb.PublishEntry(topic_id=TOPIC_ID, length=len(data))
        number = peer.post(data, publish=pb.Publish(entries=[entry], acks=acks, timeout_ms=200))
        (late,) = await peer.published(number)
        assert (late.error.code, late.error.definite) == (pb.TIMED_OUT, False)
    for name in NODES:
        stand.disks[name].heal()


async def test_push_windows_are_rebalanced_periodically(stand: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    await stand.start()
    owner = await stand.owner()
    ownership = stand.partition(owner).replica.ownership
    for bound_bytes in (5 * KIB, 7 * KIB):
        for name in ("WINDOW_BYTES_MAX", "WINDOW_BYTES_MIN"):
            monkeypatch.setattr(push_windows, name, bound_bytes)
        assert ownership._pushes is not None
        await settled(lambda bound=bound_bytes: ownership._pushes.window_bytes == bound, "windows are not shared out")  # type: ignore[misc]


async def test_only_owners_with_followers_share_push_memory(stand: ClusterStand) -> None:
    await stand.start()
    first = await stand.owner()
    name = {each: stand.nodes[each].broker.replication for each in NODES}
    key = stand.partition(first).replica.state.key
    mine = {each: name[each].get(key) for each in NODES}

    def pushing(node_id: str) -> bool:
        driver = mine[node_id]
        return driver is not None and driver.replica.ownership in name[node_id].pushing()

    assert [each for each in NODES if pushing(each)] == [first]
    stand.isolate(first)
    second = await stand.owner(but=first)
    await settled(lambda: pushing(second), "the new owner does not share push memory")
    stand.isolate()
    await settled(lambda: not pushing(first), "the previous owner still shares push memory")
    name[second].drop(key[0])
    assert name[second].pushing() == []


async def test_slow_follower_uses_a_bounded_window_and_catches_up(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.start()
    owner = await stand.owner()
    slow = others(owner)[0]
    replica = stand.partition(owner).replica
    bound_windows(stand, owner, 64 * KIB, monkeypatch)
    await stand.publish(b"first")
    stand.disks[slow].hold("sync")
    values = [bytes([number]) * 20_000 for number in range(20)]
    for value in values:
        await stand.publish(value)
    assert replica.ownership.window_kept_bytes <= 64 * KIB
    assert [one.streaming for one in replica.followers if one.node_id == slow] == [False]
    stand.disks[slow].heal()
    await stand.agree(b"first", *values)
    assert stand.nodes[slow].broker.replication.get(KEY).queued_bytes == 0  # type: ignore[union-attr]  # exists


async def test_follower_with_a_full_disk_resumes_when_there_is_space(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    full = others(owner)[0]
    await stand.publish(b"first")
    await stand.agree(b"first")
    stand.disks[full].fill_up()
    values = [bytes([number]) * 30_000 for number in range(6)]
    for value in values:
        await stand.publish(value)
    assert stand.nodes[full].lifecycle.health.state == "running"
    stand.disks[full].heal()
    await stand.agree(b"first", *values)


async def test_follower_with_a_failed_disk_stops_and_others_continue(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    broken = others(owner)[0]
    await stand.publish(b"a")
    stand.disks[broken].break_at("sync")
    await stand.publish(b"b")
    node = stand.nodes[broken]
    await settled(lambda: node.lifecycle.health.state == "failed", "the node goes on with a broken disk")
    stand.disks[broken].heal()
    await stand.stop(broken)
    await stand.publish(b"c")
    assert await stand.read(owner) == [b"a", b"b", b"c"]


async def test_an_end_is_decided_only_when_a_quorum_has_synced_the_log_through_it(stand: ClusterStand) -> None:
    await stand.start(flush=pb.NEVER)
    owner = await stand.owner()
    await stand.publish(b"a", b"b")
    await stand.agree(b"a", b"b")
    slow = [owner, others(owner)[0]]
    epoch = stand.partition(owner).driver.replica.state.active.epoch
    for name in slow:
        stand.disks[name].hold("sync")
    stand.partition(owner).driver.roll_over(Plan(owner, NODES, 2))
    for name in slow:
        await stand.disks[name].held_up()
    assert {stand.partition(name).driver.replica.state.active.epoch for name in NODES} == {epoch}
    for name in slow:
        stand.disks[name].heal()
    await settled(lambda: stand.partition(owner).driver.replica.state.active.epoch > epoch, "the epoch does not end")
    await stand.publish(b"c")
    await stand.agree(b"a", b"b", b"c")


async def test_node_with_a_failed_final_sync_stops_and_others_continue(
    stand: ClusterStand,
) -> None:
    await stand.start(flush=pb.NEVER)
    owner = await stand.owner()
    broken = others(owner)[0]
    await stand.publish(b"a")
    await stand.agree(b"a")
    stand.disks[broken].break_at("sync")
    stand.partition(owner).driver.roll_over(Plan(owner, NODES, 2))
    await settled(lambda: stand.nodes[broken].lifecycle.health.state == "failed", "the node goes on with a broken disk")
    stand.disks[broken].heal()
    await stand.stop(broken)
    await stand.publish(b"b")
    assert await stand.read(owner) == [b"a", b"b"]


async def test_all_nodes_restarted_keep_all_records(stand: ClusterStand) -> None:
    await stand.start()
    values = [b"%d" % number for number in range(10)]
    await stand.publish(*values)
    for name in NODES:
        await stand.crash(name)
    await stand.start()
    await stand.publish(b"more")
    await stand.agree(*values, b"more")


async def test_a_planned_move_brings_the_history_to_a_new_node(stand: ClusterStand) -> None:
    await stand.start(*NODES, "d")
    owner = await stand.owner()
    values = [bytes([number]) * 10_000 for number in range(20)]
    for value in values:
        await stand.publish(value)
    stay = others(owner)[0]
    placement = (owner, stay, "d")
    stand.partition(owner).driver.roll_over(Plan(owner, placement, 2))
    await settled(lambda: stand.nodes["d"].broker.partitions.find(KEY) is not None, "the new node was not told")
    await stand.publish(b"more")
    new = stand.partition("d")
    await settled(lambda: new.state.readable_end == 21 and new.log.start_offset == 0, "the history does not come")
    assert await stand.read("d") == [*values, b"more"]
    left = next(name for name in NODES if name not in placement)
    frame = await (await stand.peer(left)).ask(fetch=pb.Fetch(entries=[pb.FetchEntry(topic_id=TOPIC_ID)]))
    assert frame.envelope.fetch_reply.results[0].error.code == pb.NOT_OWNER
    await stand.crash(owner)
    await stand.publish(b"last", to=await stand.owner(but=owner))


async def test_replica_follows_again_after_its_missing_records_are_deleted(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.start(retention_bytes=192 * KIB, retention_interval_ms=10, ring_bytes=0)
    first = await stand.owner()
    away = others(first)[0]
    owner = stand.partition(first)
    bound_windows(stand, first, 0, monkeypatch)
    peer = await stand.peer(first)

    async def publish(peer: Peer, sequence: int) -> pb.PublishResult:
        (result,) = await peer.publish(TOPIC_ID, batch(b"%020d" % sequence * 1500, producer_id=7, sequence=sequence))
        return result

    await publish(peer, 0)
    await settled(lambda: stand.partition(away).log.end_offset == 1, "it did not follow")
    await stand.crash(away)
    for sequence in range(1, 20):
        await publish(peer, sequence)
    await settled(lambda: owner.state.log_start > 1, "nothing was deleted")
    await stand.start(away)

    def follows() -> bool:
        one = stand.partition(away)
        return (
            one.log.end_offset == one.state.high_watermark == owner.state.high_watermark
            and not one.replica.backfill.incomplete
            and 0 < one.log.start_offset <= one.state.log_start
        )

    await settled(follows, "it does not follow")
    assert 2 <= owner.state.epoch <= 4, "behind the take-over one roll-over whenever an epoch alone fills the bound"
    await publish(peer, 20)
    await settled(follows, "it does not go on")
    front = max(stand.partition(name).log.start_offset for name in NODES)
    assert len({tuple(read_from(stand.partition(name).log, front)) for name in NODES}) == 1
    await stand.crash(away)
    await stand.start(away)
    await settled(follows, "it does not follow after a start")
    await stand.crash(first)
    await stand.crash(others(first)[1])
    await stand.start(others(first)[1])
    second = await stand.owner()
    retried = await publish(await stand.peer(second), 20)
    assert (retried.duplicate, retried.base_offset) == (True, 20)


async def test_retention_deletes_nothing_that_may_be_truncated(stand: ClusterStand) -> None:
    """Cut off and not aware of it, the owner writes far more than is to be kept, and none of it is committed."""
    await stand.start(retention_bytes=64 * KIB, ring_bytes=0)
    first = await stand.owner()
    await stand.publish(b"kept")
    await stand.agree(b"kept")
    stand.suspect(first)
    for number in range(10):
        await stand.publish(b"%030d" % number * 1000, to=first, acks=pb.ONE)
    owner = stand.partition(first)
    assert owner.log.end_offset == 11
    await owner.retention.check()
    assert owner.log.start_offset == 0
    await stand.owner(but=first)
    stand.isolate()
    await stand.agree(b"kept")


def read_from(log: PartitionLog, offset: int) -> list[bytes]:
    return [one for one in read_all(log) if unpack_header(one).base_offset >= offset]


async def test_deposed_owner_does_not_return_the_latest_offset(stand: ClusterStand) -> None:
    """An isolated owner that has not detected it: it may serve committed records, but does not know the log end."""
    await stand.start()
    first = await stand.owner()
    await stand.publish(b"a")
    peer = await stand.peer(first)
    stand.suspect(first)
    second = await stand.owner(but=first)
    await stand.publish(b"b", to=second)
    assert stand.partition(first).state.assigner is not None, "it thinks that it is the owner"
    latest = pb.ListOffsets(entries=[pb.ListOffsetsEntry(topic_id=TOPIC_ID, latest=True)])
    number = peer.post(list_offsets=latest)
    assert await stand.read(first) == [b"a"]
    result = (await peer.reply(number)).envelope.list_offsets_reply.results[0]
    assert result.error.code in {pb.QUORUM_LOST, pb.NOT_OWNER}
    good = (await (await stand.peer(second)).ask(list_offsets=latest)).envelope.list_offsets_reply.results[0]
    assert good.offset == 2
    stand.isolate()
    await stand.agree(b"a", b"b")
    moved = (await peer.ask(list_offsets=latest)).envelope.list_offsets_reply.results[0]
    assert moved.error.code == pb.NOT_OWNER


async def test_long_polls_end_with_the_epoch_and_subscriptions_continue(stand: ClusterStand) -> None:
    await stand.start()
    first = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    follower = others(first)[0]
    peer = await stand.peer(follower)
    entry = pb.SubscribeEntry(topic_id=TOPIC_ID, offset=0)
    await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=99, credit_bytes=10**6))
    assert (await peer.event()).envelope.message_event.next_offset == 1
    poll = peer.post_fetch(TOPIC_ID, 1, min_bytes=1, wait_ms=30_000)
    await settled(lambda: len(stand.partition(follower).changes.listeners) == 2, "the fetch does not wait")
    await stand.crash(first)
    result = (await peer.reply(poll)).envelope.fetch_reply.results[0]
    assert result.error.code == pb.EPOCH_CHANGING
    await stand.publish(b"b", to=await stand.owner(but=first))
    assert (await peer.event()).envelope.message_event.next_offset == 2


async def test_publishes_under_failures_are_stored_once_and_in_order(stand: ClusterStand) -> None:
    """One producer retries the same batches at whoever owns, while owners are killed and come back."""
    await stand.start()
    acknowledged: list[int] = []

    async def produce() -> None:
        while len(acknowledged) < 60:
            sequence = len(acknowledged)
            owners = stand.owners()
            if not owners:
                await asyncio.sleep(0.005)
                continue
            try:
                peer = await stand.peer(owners[0])
                number = peer.post_publish(TOPIC_ID, batch(b"%d" % sequence, producer_id=7, sequence=sequence))
                envelope = (await peer.reply(number)).envelope
            except (ConnectionError, OSError):
                continue
            if envelope.error.code == pb.INTERNAL:
                continue  # a killed process would have said nothing; here its threads are gone before its sockets
            (result,) = envelope.publish_reply.results
            if not result.HasField("error"):
                acknowledged.append(result.base_offset)
            else:
                assert result.error.retriable, result.error

    task = asyncio.create_task(produce())
    for round_number in range(3):
        await settled(lambda: len(acknowledged) >= 15 * (round_number + 1) or task.done(), "nothing is acknowledged")  # noqa: B023
        if task.done():
            break
        victim = await stand.owner()
        await stand.crash(victim)
        await stand.owner(but=victim)
        await stand.start(victim)
    await task
    assert acknowledged == list(range(60))
    await stand.agree(*(b"%d" % number for number in range(60)))


async def test_subscriber_gets_records_committed_before_the_owners_own_write(
    stand: ClusterStand,
) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    peer = await stand.peer(owner)
    entry = pb.SubscribeEntry(topic_id=TOPIC_ID, offset=1)
    await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=99, credit_bytes=10**6))
    stand.disks[owner].hold("sync")
    await stand.publish(b"b", to=owner)
    assert stand.partition(owner).state.high_watermark == 2
    assert stand.partition(owner).ring.end_offset == 1, "the others were faster"
    stand.disks[owner].heal()
    async with asyncio.timeout(10):
        event = await peer.event()
    assert event.envelope.message_event.next_offset == 2
