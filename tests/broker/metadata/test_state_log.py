from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.prepared import prepared
from tests.broker.stand import Stand, settled

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.positions import OffsetKey
from tidelog_broker.core.topics import META_KEY, OFFSETS_KEY
from tidelog_broker.metadata import internal_topics
from tidelog_broker.metadata import state_log as state_log_module
from tidelog_broker.metadata.state_log import StateLog
from tidelog_broker.node.node import Node
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after a few kilobytes, in segments as small as they get."""
    monkeypatch.setattr(state_log_module, "SNAPSHOT_AFTER_BYTES", 8 * KIB)
    monkeypatch.setattr(state_log_module, "RECORDS_PER_BATCH", 7)
    monkeypatch.setattr(internal_topics, "INTERNAL_SEGMENT_BYTES", 64 * KIB)


def state_of(node: Node) -> tuple[list[bytes], list[bytes]]:
    topics = sorted(
        record.SerializeToString() for record in node.broker.topics.records() if not record.name.startswith("__")
    )
    shards = node.broker.groups
    return topics, sorted(record.SerializeToString() for shard in shards for record in shard.positions.records())


async def with_groups(node: Node) -> Node:
    """Have the node know what all of its groups have committed."""
    for _, index in node.broker.groups.all_keys():
        await node.broker.groups.at(index).coordinator.ready()
    return node


def position(node: Node, group: str, topic_id: bytes) -> pb.OffsetRecord | None:
    return node.broker.groups.of(group).positions.get(OffsetKey(group, topic_id, 0))


def resting(node: Node) -> bool:
    names = ["__meta/0", *(f"__offsets/{index}" for _, index in node.broker.groups.all_keys())]
    return not any(node.broker.tasks.named(f"snapshot {name}") for name in names)


async def commit(peer: Peer, topic_id: bytes, next_offset: int, group: str, note: str = "") -> None:
    entry = pb.CommitEntry(topic_id=topic_id, next_offset=next_offset, note=note)
    reply = (await peer.ask(commit=pb.Commit(group=group, entries=[entry]))).envelope
    assert reply.HasField("commit_reply"), reply


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_snapshots_shorten_the_log_and_keep_the_state(stand: Stand, end: str) -> None:
    node = await with_groups(await stand.start(offsets_partitions=1))
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(*[b"x"] * 300))
    for number in range(1, 120):
        await commit(peer, topic.topic_id, number, f"group-{number % 17}", note="n" * 2000)
    for number in range(10):
        await peer.create(f"passing-{number}")
        await peer.delete(f"passing-{number}")
    await settled(lambda: resting(node), "a snapshot never ended")
    partition = node.broker.partitions.get(*OFFSETS_KEY)
    assert partition.state.log_start > 0, "no records were deleted"
    assert partition.log.size_bytes < 250 * KIB
    before = state_of(node)
    await getattr(stand, end)()
    node = await with_groups(await stand.start(offsets_partitions=1))
    assert state_of(node) == before
    found = position(node, "group-0", topic.topic_id)
    assert found is not None
    assert found.next_offset == 119


async def test_concurrent_callers_share_one_read(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_groups(await stand.start(offsets_partitions=1))
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(*[b"x"] * 300))
    for number in range(1, 20):
        await commit(peer, topic.topic_id, number, "g")
    await stand.stop()
    node = await stand.start(offsets_partitions=1)
    shard = node.broker.groups.at(0)
    applied: list[int] = []
    take = shard.log.take

    def counted(buffer: memoryview) -> int:
        applied.extend(RecordBatch.parse(view).base_offset for view in iter_batches(buffer))
        return take(buffer)

    monkeypatch.setattr(shard.log, "take", counted)
    turns, went_on_in = 0, list[int]()

    async def ready() -> None:
        await shard.coordinator.ready()
        went_on_in.append(turns)

    asking = asyncio.gather(*(ready() for _ in range(20)))
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    await asking
    assert applied == sorted(set(applied)), "each has applied all records, and delayed the rest of the node"
    assert len(applied) >= 19
    assert len(set(went_on_in)) <= 2, "one after the other, each waits for a turn of a node that is busy"


@pytest.mark.parametrize("error", [ProtocolError(pb.CORRUPT_BATCH, "rotten"), ZeroDivisionError("a bug")])
async def test_failed_read_is_reported_to_all_callers(error: Exception) -> None:
    readings = 0

    async def fails(*_: int) -> list[memoryview]:
        nonlocal readings
        readings += 1
        await asyncio.sleep(0)
        raise error

    partition = SimpleNamespace(
        name="t/0",
        state=SimpleNamespace(log_start=0, high_watermark=5),
        reader=SimpleNamespace(read_log=fails),
    )
    log = StateLog(Tasks(), lambda: cast(Partition, partition), apply=lambda _: None, live=lambda: ())
    for asked in (1, 2):
        outcomes = await asyncio.gather(*(log.apply_committed() for _ in range(3)), return_exceptions=True)
        assert outcomes == [error] * 3
        assert readings == asked


async def test_state_is_read_again_when_the_epoch_ends() -> None:
    """The other owner of the epoch in between has committed more than was to be read at first."""
    values = [encode_batch(columns_of([value]), now_us=1, control=True).to_bytes() for value in (b"old", b"new")]
    state = SimpleNamespace(log_start=0, high_watermark=1, epoch=1)

    async def ensure_active() -> None:
        await asyncio.sleep(0)

    async def read_log(offset: int, _: int) -> list[memoryview]:
        await asyncio.sleep(0)
        data = bytearray(values[offset])
        stamp_owner(data, base_offset=offset, append_timestamp_us=1, epoch=1, owner_incarnation=1, previous_digest=0)
        if state.epoch == 1:
            state.epoch = 3
            asyncio.get_running_loop().call_soon(setattr, state, "high_watermark", 2)
        return [memoryview(data)]

    partition = SimpleNamespace(
        name="t/0",
        state=state,
        access=SimpleNamespace(ensure_active=ensure_active),
        reader=SimpleNamespace(read_log=read_log),
    )
    applied: list[bytes] = []
    log = StateLog(Tasks(), lambda: cast(Partition, partition), apply=applied.append, live=lambda: ())
    assert await log.ready() == 3
    assert applied == [b"old", b"new"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("operation", ["unlink", "sync"])
async def test_crash_during_a_snapshot_loses_nothing(stand: Stand, operation: str) -> None:
    """Acknowledged commits survive a crash while the snapshot is written or its old segments are deleted."""
    node = await with_groups(await stand.start(offsets_partitions=1))
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(*[b"x"] * 300))
    acknowledged = 0

    async def commit_on_and_on() -> None:
        nonlocal acknowledged
        for number in range(1, 300):
            await commit(peer, topic.topic_id, number, "g", note="n" * 4000)
            acknowledged = number

    stand.disk.hold(operation, "__offsets")
    held = stand.disk.held
    stand.disk.held = lambda what, path: held(what, path) and not resting(node)
    committing = asyncio.create_task(commit_on_and_on())
    await stand.disk.held_up()
    committing.cancel()
    await asyncio.wait([committing])
    assert acknowledged > 0
    await stand.crash()
    node = await with_groups(await stand.start(offsets_partitions=1))
    found = position(node, "g", topic.topic_id)
    assert found is not None
    assert found.next_offset >= acknowledged


async def test_snapshot_includes_records_durable_in_the_same_turn(
    stand: Stand, node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that begins between a record's append and its writer's next turn must not leave it out.

    Records before the snapshot's start are deleted, so a record of that part that is missing in the snapshot
    would be lost.
    """
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(*[b"x"] * 10))
    shard = node.broker.groups.of("g")
    epoch = await shard.coordinator.ready()
    offsets, partition = shard.log, node.broker.partitions.get(*shard.key)
    written: list[list[bytes | None]] = []
    bounds: list[int] = []
    appended, submit, delete_before = partition.appended, partition.pipeline.submit, partition.retention.delete_before

    def begin_a_snapshot(*args: Any, **kwargs: Any) -> None:
        appended(*args, **kwargs)
        monkeypatch.undo()
        monkeypatch.setattr(partition.pipeline, "submit", note)
        monkeypatch.setattr(partition.retention, "delete_before", bound)
        node.broker.tasks.spawn(offsets.snapshot(epoch), "a snapshot")

    def note(pending: QueuedBatch) -> None:
        written.append(RecordBatch.parse(pending.data).values())
        submit(pending)

    async def bound(offset: int, *, epoch: int) -> None:
        bounds.append(offset)
        await delete_before(offset, epoch=epoch)

    monkeypatch.setattr(partition, "appended", begin_a_snapshot)
    await commit(peer, topic.topic_id, 7, "g")
    await settled(lambda: bool(bounds), "the snapshot never ended")
    assert bounds == [1]
    (values,) = written
    assert [pb.OffsetRecord.FromString(value or b"").next_offset for value in values] == [7]


async def test_refused_write_applies_nothing(stand: Stand, node: Node, peer: Peer) -> None:
    stand.disk.fill_up()
    refused, number = None, 0
    for number in range(400):
        envelope = (await peer.ask(topic_create=pb.TopicCreate(name=f"t-{number}" + "x" * 150))).envelope
        if envelope.HasField("error"):
            refused = envelope.error
            break
    assert refused is not None
    assert refused.code == pb.DISK_FULL
    stand.disk.heal()
    assert not node.broker.topics.exists(f"t-{number}" + "x" * 150)
    assert (await peer.create(f"t-{number}" + "x" * 150)).name
    before = state_of(node)
    await stand.restart()
    assert state_of(stand.node) == before


@pytest.mark.usefixtures("tiny")
async def test_node_records_survive_snapshots(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    await peer.create("kept")
    said = pb.NodeRecord(node_id="other", host="h", port=1, gossip_host="h", gossip_port=1, zone="z", weight=100)
    said.roles.append(pb.PERSISTENCE)
    for start in range(1, 6):
        said.incarnation = start << 24
        record = node.broker.nodes.announced(said)
        assert record is not None
        await node.broker.meta_log.write_node(record, epoch=await node.broker.meta_log.ready())
    assert [one.revision for one in node.broker.nodes.live()] == [5]
    partition = node.broker.partitions.get(*META_KEY)
    begin = partition.state.high_watermark
    await node.broker.meta_log.snapshot(await node.broker.meta_log.ready())
    buffers = await partition.reader.read_log(begin, 1 << 20)
    snapshot = [
        value for buffer in buffers for view in iter_batches(buffer) for value in RecordBatch.parse(view).values()
    ]
    records = [pb.MetaRecord.FromString(value or b"") for value in snapshot]
    assert [record.node for record in records if record.HasField("node")] == node.broker.nodes.live()
    before = [*node.broker.nodes.records()]
    await stand.restart()
    assert [*stand.node.broker.nodes.records()] == before
    assert stand.node.broker.topics.exists("kept")
    assert not any("other" in one.name for one in stand.node.broker.topics.records())


@pytest.mark.parametrize("code", [pb.TIMED_OUT, pb.NOT_OWNER])
async def test_position_with_an_unknown_outcome_is_not_overwritten(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch, code: pb.ErrorCode
) -> None:
    """Later changes have a higher revision; with an equal one they would be lost."""
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(*[b"x"] * 10))
    key = OffsetKey("g", topic.topic_id, 0)
    epoch = await node.broker.groups.of("g").coordinator.ready()
    first = prepared(node.broker.groups.of("g").positions, key, next_offset=3)
    assert first is not None

    def failing(pending: QueuedBatch) -> None:
        pending.settle(ProtocolError(code, "no"), False)

    with monkeypatch.context() as patched:
        patched.setattr(node.broker.partitions.get(*node.broker.groups.key_of("g")).pipeline, "submit", failing)
        with pytest.raises(ProtocolError):
            await node.broker.groups.of("g").log.write_offsets([first], epoch=epoch)
    second = prepared(node.broker.groups.of("g").positions, key, next_offset=5)
    assert second is not None
    assert second.revision - first.revision == (1 if code == pb.TIMED_OUT else 0)


async def test_concurrent_writes_all_count_towards_the_next_snapshot(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    log: Any = node.broker.groups.of("g").log

    def counted_bytes() -> int:
        return int(vars(log)["_bytes_since_snapshot"])

    async def written_bytes(*next_offsets: int) -> int:
        before = counted_bytes()
        numbers = []
        for next_offset in next_offsets:
            entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=next_offset)
            numbers.append(peer.post(commit=pb.Commit(group="g", entries=[entry])))
        await asyncio.wait([asyncio.create_task(peer.reply(number)) for number in numbers])
        return counted_bytes() - before

    await peer.publish(topic.topic_id, batch(*[b"x"] * 9))
    single = await written_bytes(1)
    stand.disk.hold("sync", "__offsets")
    both = asyncio.create_task(written_bytes(2, 3))
    await stand.disk.held_up()
    stand.disk.heal()
    assert (single > 0, await both) == (True, 2 * single)


@pytest.mark.parametrize("snapshotting", [False, True], ids=["alone", "beside a snapshot"])
async def test_change_waits_for_the_previous_outcome(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch, *, snapshotting: bool
) -> None:
    if snapshotting:
        monkeypatch.setattr(state_log_module, "SNAPSHOT_AFTER_BYTES", 1)
        monkeypatch.setattr(node.broker.meta_log, "snapshot", lambda _: asyncio.Event().wait())
    await peer.create()
    held: list[QueuedBatch] = []
    with monkeypatch.context() as patched:
        patched.setattr(node.broker.partitions.get(*META_KEY).pipeline, "submit", held.append)
        patched.setattr(state_log_module, "WRITE_TIMEOUT_S", 0.01)
        assert (await peer.refused(topic_create=pb.TopicCreate(name="u"))).code == pb.TIMED_OUT
    refused = await peer.refused(topic_delete=pb.TopicDelete(name="t"))
    assert refused.code == pb.EPOCH_CHANGING
    held[0].settle(ProtocolError(pb.TIMED_OUT, "no"), False)
    await peer.delete("t")
    assert not node.broker.topics.exists("t")


async def groups_of(peer: Peer) -> list[str]:
    return [group.group for group in (await peer.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups]


async def test_group_deletion_waits_for_a_snapshot(
    stand: Stand, node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x", b"y"))
    await commit(peer, topic.topic_id, 1, "g")
    offsets_log, go_on = node.broker.groups.of("g").log, asyncio.Event()
    snapshot = offsets_log.snapshot

    async def later(epoch: int) -> None:
        await go_on.wait()
        await snapshot(epoch)

    monkeypatch.setattr(state_log_module, "SNAPSHOT_AFTER_BYTES", 1)
    monkeypatch.setattr(offsets_log, "snapshot", later)
    await commit(peer, topic.topic_id, 2, "g")
    assert (await peer.refused(group_delete=pb.GroupDelete(group="g"))).code == pb.EPOCH_CHANGING
    assert await groups_of(peer) == ["g"]
    go_on.set()
    await settled(lambda: resting(node), "a snapshot never ended")
    await peer.ask(group_delete=pb.GroupDelete(group="g"))
    await stand.restart()
    assert await groups_of(await stand.peer()) == []


async def test_snapshot_waits_for_a_group_deletion(
    stand: Stand, node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x", b"y"))
    for group in ("g", "h"):
        await commit(peer, topic.topic_id, 1, group)
    monkeypatch.setattr(state_log_module, "SNAPSHOT_AFTER_BYTES", 1)
    stand.disk.hold("sync", "__offsets")
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=2)
    before = peer.post(commit=pb.Commit(group="h", entries=[entry]))
    await stand.disk.held_up()
    deleting = (await stand.peer()).post(group_delete=pb.GroupDelete(group="g"))
    await asyncio.sleep(0.05)
    stand.disk.heal()
    await peer.reply(before)
    await stand.peers[-1].reply(deleting)
    await settled(lambda: resting(node), "a snapshot never ended")
    await stand.restart()
    assert await groups_of(await stand.peer()) == ["h"]


# --- epochs of other nodes -----------------------------------------------------------------------------
