"""Known weaknesses of other systems of this kind, and the test that Tidelog does not have them.

The systems are RingBroker (Java), RobustMQ's storage engine (Rust) and a broker built by hand in Java with a Raft of
its own. `KNOWN` lists their weaknesses, each with the tests that would fail if it were ours: those in this file, and
those that stand with the part that they are about. Of mutants, `tests.simulation.mutants` makes the weakness on
purpose, and the simulation has to notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.broker.cluster_stand import KEY, NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.founded import Founded
from tests.broker.peer import batch
from tests.broker.stand import settled
from tests.simulation.mutants import MUTANTS

from tidelog_broker.core.topics import OFFSETS_KEY
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import columns_of, encode_batch

ROOT: Final = Path(__file__).parents[2]

HERE: Final = "tests/e2e/test_known_weaknesses.py"

KNOWN: Final[dict[str, dict[str, list[str]]]] = {
    "RingBroker": {
        "a segment that is not empty is cut down to its header at each opening": [
            f"{HERE}::test_reopening_a_log_repeatedly_does_not_change_it",
            "tests/broker/storage/epoch/test_recovery.py::test_power_loss_anywhere_loses_nothing_synced_and_invents_nothing",
        ],
        "replicas acknowledge before they write": [
            f"{HERE}::test_a_replica_acknowledges_only_records_on_its_disk",
            "mutant: acknowledged before synced",
        ],
        "a dead owner is never replaced": [
            "tests/e2e/test_cluster.py::test_killing_the_owner_loses_nothing_and_it_rejoins",
            "tests/broker/replication/test_driver.py::test_acknowledged_records_survive_a_takeover",
        ],
        "the same epoch is opened again for a second owner": [
            f"{HERE}::test_an_epoch_has_one_owner_however_often_nodes_die",
            "mutant: a second value at the reserved ballot",
            "mutant: a restarted owner resumes",
        ],
        "replicas do not read their fences again when they start": [
            f"{HERE}::test_a_promise_outlasts_the_process_that_gave_it",
            "mutant: fence not persisted",
        ],
        "metadata of equal versions differ for ever": [
            f"{HERE}::test_an_epoch_has_one_owner_however_often_nodes_die",
            "tests/broker/core/replication/test_candidate_unsafe.py::test_two_unsafe_decisions_about_one_epoch_halt_both",
            "mutant: membership as authority",
        ],
        "backfill fetches 64 records and stops": [
            f"{HERE}::test_a_replica_that_lacks_a_million_records_gets_all_of_them",
            f"{HERE}::test_history_is_read_to_the_end_batch_by_batch",
            "mutant: backfill cut short",
        ],
        "committed offsets are acknowledged before they are written, and lost by a restart": [
            f"{HERE}::test_a_committed_offset_outlasts_every_node",
            "tests/broker/server/handlers/test_commit.py::test_commit_is_durable_before_its_reply",
            "tests/broker/server/handlers/test_commit.py::test_commit_survives_a_restart",
        ],
        "subscribers see records before the quorum has them": [
            f"{HERE}::test_a_subscriber_sees_nothing_that_is_not_committed",
            "mutant: readers past the commit",
        ],
        "good records are dropped as duplicates by a hash of 32 bits": [
            f"{HERE}::test_records_that_are_alike_are_all_kept",
            "tests/broker/partition/test_pipeline.py::test_group_of_duplicates_writes_nothing",
        ],
        "topic and key are not stored": [f"{HERE}::test_all_fields_of_a_record_are_returned_by_every_node"],
        "its benchmark sends 12 bytes inside one process, with acknowledgements before the write": [
            "tests/loadtest/stand/test_cluster_stand.py",
            f"{HERE}::test_a_replica_acknowledges_only_records_on_its_disk",
        ],
    },
    "RobustMQ": {
        "reads are not capped at the high watermark": [
            "tests/broker/partition/test_reader.py::test_uncommitted_records_are_not_readable_on_any_replica",
            "tests/broker/replication/test_driver.py::test_tail_to_be_truncated_is_not_readable",
        ],
        "a write that is handed on counts with one acknowledgement": [
            f"{HERE}::test_a_forwarded_publish_waits_for_the_requested_acks",
        ],
        "data is not synced": [
            f"{HERE}::test_a_replica_acknowledges_only_records_on_its_disk",
            "tests/broker/storage/epoch/test_recovery.py::test_power_loss_at_each_step",
        ],
        "the tail is not looked at after a crash": [
            "tests/broker/storage/epoch/test_recovery.py::test_truncation_at_every_byte_of_the_last_group_leaves_whole_batches",
            "tests/broker/storage/epoch/test_recovery.py::test_valid_batches_after_a_torn_one_never_reappear",
        ],
        "stored checksums are never compared": [
            f"{HERE}::test_a_flipped_bit_is_never_served",
            "tests/broker/storage/epoch/test_recovery.py::test_rot_before_the_mark_is_limbo_and_nothing_is_changed",
        ],
        "quorum acknowledgements exist in documents only, as do other features": [
            "tests/broker/replication/test_driver.py::test_publish_waits_for_the_requested_acks",
            "tests/test_configuration.py",
            "tests/test_docs.py",
        ],
        "followers lack index entries": [f"{HERE}::test_every_replica_finds_records_by_time"],
    },
    "a hand-built broker": {
        "its Raft is not connected to its topics": [
            "tests/e2e/test_cluster.py::test_killing_the_owner_loses_nothing_and_it_rejoins",
        ],
        "votes are not persisted": [
            f"{HERE}::test_a_promise_outlasts_the_process_that_gave_it",
            "mutant: promise answered before persisted",
        ],
    },
}


def named() -> list[str]:
    return sorted({test for weaknesses in KNOWN.values() for tests in weaknesses.values() for test in tests})


@pytest.mark.parametrize("test", named())
def test_the_listed_tests_exist(test: str) -> None:
    if test.startswith("mutant: "):
        assert test.removeprefix("mutant: ") in MUTANTS
        return
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists()


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Founded]:
    cluster = Founded(tmp_path)
    try:
        await cluster.found()
        await cluster.settled()
        yield cluster
    finally:
        await cluster.close()


def others(node_id: str) -> list[str]:
    return [name for name in NODES if name != node_id]


# ------------------------------------------------------------------------------------------------------ the log


async def test_reopening_a_log_repeatedly_does_not_change_it(stand: ClusterStand) -> None:
    values = [b"%d" % number * 50 for number in range(100)]
    await stand.start()
    await stand.publish(*values)
    await stand.agree(*values)
    written: dict[Path, bytes] = {}
    for end in ("stop", "crash", "crash", "stop"):
        for name in list(stand.nodes):
            await getattr(stand, end)(name)
        for path, data in written.items():
            assert path.read_bytes()[: len(data)] == data, "written bytes have changed"
        for path in stand.path.rglob("*.seg"):
            written[path] = path.read_bytes().rstrip(b"\0")
        await stand.start()
        await stand.owner()
    assert any(len(data) > 5000 for data in written.values())
    await stand.agree(*values)


async def test_a_flipped_bit_is_never_served(stand: ClusterStand) -> None:
    values = [bytes([number]) * 1000 for number in range(100)]
    await stand.start(ring_bytes=0)
    await stand.publish(*values)
    await stand.agree(*values)
    rotten = others(await stand.owner())[0]
    await stand.stop(rotten)
    segment = next(path for path in (stand.path / rotten).rglob("*.seg") if values[3] in path.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(values[3]) + 500] ^= 1
    segment.write_bytes(data)
    await stand.start(rotten)
    peer = await stand.peer(rotten)
    served: list[bytes | None] = []
    for offset in range(len(values)):
        frame = await peer.reply(peer.post_fetch(TOPIC_ID, offset, max_bytes=1))
        (result,) = frame.envelope.fetch_reply.results
        if not result.HasField("error"):
            served += [value for one in await peer.fetch(TOPIC_ID, offset, max_bytes=1) for value in one.values()]
    assert set(served) <= set(values)
    await stand.agree(*values)  # the others' copies put it right


async def test_all_fields_of_a_record_are_returned_by_every_node(three: Founded) -> None:
    peer = await three.peer("a")
    topic = await peer.create("flights", replication_factor=3)
    await three.publish(peer, topic.topic_id, b"first")
    columns = columns_of([b"value", None], keys=[b"key", None], headers=[[("h", b"1")], []], tags=["tag", None])
    (result,) = await peer.publish(topic.topic_id, encode_batch(columns, now_us=5).to_bytes())
    assert result.base_offset == 1
    await three.copies((topic.topic_id, 0), end_offset=3)
    for name in "abc":
        (found,) = await (await three.peer(name)).fetch(topic.topic_id, 1)
        assert (found.values(), found.keys(), found.tags()) == ([b"value", None], [b"key", None], ["tag", None])
        assert found.headers() == [(("h", b"1"),), ()]
        assert three.nodes[name].broker.topics.with_id(topic.topic_id).name == "flights"


async def test_records_that_are_alike_are_all_kept(stand: ClusterStand) -> None:
    """Only batches with the same sequence number of one producer are one record."""
    await stand.start()
    alike = [b"the same"] * 500
    await stand.publish(*alike)
    peer = await stand.peer(await stand.owner())
    for producer in (7, 8):
        for sequence in (0, 1):
            await peer.publish(TOPIC_ID, batch(b"the same", producer_id=producer, sequence=sequence))
    (again,) = await peer.publish(TOPIC_ID, batch(b"the same", producer_id=8, sequence=1))
    assert (again.duplicate, again.base_offset) == (True, 503)
    await stand.agree(*alike, *[b"the same"] * 4)


# ------------------------------------------------------------------------------------------- acknowledgements


async def test_a_replica_acknowledges_only_records_on_its_disk(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    for name in others(owner):
        stand.disks[name].hold("sync")
    peer = await stand.peer(owner)
    number = peer.post_publish(TOPIC_ID, batch(b"b"))
    for name in others(owner):
        await stand.disks[name].held_up()
    await settled(lambda: stand.partition(owner).log.end_offset == 2, "the owner has not written it")
    for name in others(owner):
        assert stand.partition(name).replica.state.tail.queued.offset == 2, "it has the record, and has not synced it"
        assert stand.partition(name).replica.state.tail.durable.offset == 1
    assert not peer.answered(number)
    assert stand.partition(owner).state.high_watermark == 1
    stand.disks[others(owner)[0]].heal()
    (result,) = await peer.published(number)
    assert result.base_offset == 1, "one of the two is enough"


async def test_a_subscriber_sees_nothing_that_is_not_committed(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    watchers = [await stand.peer(name) for name in NODES]
    entry = pb.SubscribeEntry(topic_id=TOPIC_ID, offset=0)
    for peer in watchers:
        ask = pb.Subscribe(subscription_id=1, entries=[entry], credit_records=99, credit_bytes=1 << 20)
        await peer.ask(subscribe=ask)
        assert (await peer.event()).envelope.message_event.next_offset == 1
    for name in others(owner):
        stand.disks[name].hold("sync")
    await stand.publish(b"b", to=owner, acks=pb.ONE)
    assert [peer.events.qsize() for peer in watchers] == [0, 0, 0], "one replica acknowledged it, and none committed it"
    for name in others(owner):
        stand.disks[name].heal()
    for peer in watchers:
        assert (await peer.event()).envelope.message_event.next_offset == 2


async def test_a_forwarded_publish_waits_for_the_requested_acks(
    three: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id, owner, other = await three.used()
    seen: list[int] = []
    pipeline = three.nodes[owner].broker.partitions.get(topic_id, 0).pipeline
    submit = pipeline.submit

    def noting(pending: QueuedBatch) -> None:
        seen.append(pending.acks)
        submit(pending)

    monkeypatch.setattr(pipeline, "submit", noting)
    peer = await three.peer(other)
    data = batch(b"v")
    entry = pb.PublishEntry(topic_id=topic_id, length=len(data))
    for acks in (pb.ALL, pb.QUORUM, pb.ONE):
        frame = await peer.ask(data, publish=pb.Publish(entries=[entry], acks=acks))
        assert not frame.envelope.publish_reply.results[0].HasField("error")
    assert seen == [pb.ALL, pb.QUORUM, pb.ONE]


async def test_a_committed_offset_outlasts_every_node(three: Founded) -> None:
    peer = await three.peer("a")
    topic = await peer.create(replication_factor=3)
    await three.publish(peer, topic.topic_id, *[b"v"] * 10)
    await three.copies((topic.topic_id, 0))
    await peer.ask(commit=pb.Commit(group="g", entries=[pb.CommitEntry(topic_id=topic.topic_id, next_offset=7)]))
    for name in "abc":  # each of them once, the owner of the positions among them
        await three.stop(name)
        await three.start(name)
        await three.settled()
    for name in "abc":
        asked = pb.Committed(group="g")
        found = (await (await three.peer(name)).ask(committed=asked)).envelope.committed_reply
        assert [result.next_offset for result in found.results] == [7]
    assert three.owner(OFFSETS_KEY, "a")


# ---------------------------------------------------------------------------------------------------- epochs


async def test_an_epoch_has_one_owner_however_often_nodes_die(stand: ClusterStand) -> None:
    await stand.start()
    values: list[bytes] = []
    for number in range(4):
        owner = await stand.owner()
        values.append(b"%d" % number)
        await stand.publish(values[-1])
        await stand.crash(owner)
        await stand.owner(but=owner)
        await stand.start(owner)
    await stand.publish(b"last")
    await stand.agree(*values, b"last")
    chains = [stand.partition(name).replica.state.chain for name in NODES]
    assert chains[0].decisions == chains[1].decisions == chains[2].decisions, "equal numbers, equal content"
    owners = [stand.partition("a").replica.state.decision(epoch).next for epoch in range(len(chains[0].decisions))]
    assert len(owners) >= 4
    assert [one.epoch for one in owners] == list(range(1, len(owners) + 1))
    assert len({(one.owner, one.owner_incarnation) for one in owners}) == len(owners), (
        "no owner continues another's epoch"
    )


async def test_a_promise_outlasts_the_process_that_gave_it(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    await stand.publish(b"a")
    await stand.agree(b"a")
    promiser, other = others(owner)
    stand.cut = set(NODES)
    ballot = pb.Ballot(round=9, node_id=other, incarnation=stand.nodes[other].incarnation)
    epoch = stand.partition(promiser).state.epoch
    seal = pb.Seal(topic_id=TOPIC_ID, epoch=epoch, ballot=ballot)
    stand.nodes[promiser].broker.replication.receive(other, seal, [])
    driver = stand.nodes[promiser].broker.replication.get(KEY)
    assert driver is not None
    await settled(lambda: not driver._queue, "the promise is not written")
    await stand.crash(promiser)
    await stand.start(promiser)
    fence = stand.partition(promiser).replica.state.fence
    assert fence is not None
    assert fence.promised == ballot
    lower = pb.Seal(topic_id=TOPIC_ID, epoch=epoch, ballot=pb.Ballot(round=8, node_id=other, incarnation=1))
    stand.nodes[promiser].broker.replication.receive(other, lower, [])
    assert fence.promised == ballot, "a lower ballot gets nothing"
    # Only the owner is heard: its next append reaches the promiser and is not part of the promise.
    stand.cut = {other}
    peer = await stand.peer(owner)
    peer.post_publish(TOPIC_ID, batch(b"b"), timeout_ms=1000)
    await settled(lambda: stand.partition(owner).replica.retiring, "the owner is not told of the promise")
    assert stand.partition(promiser).log.end_offset == 1


# ------------------------------------------------------------------------------------------------- catching up


async def test_history_is_read_to_the_end_batch_by_batch(stand: ClusterStand) -> None:
    """Many batches of one record each, in an epoch that is sealed before the replica comes back."""
    await stand.start()
    owner = await stand.owner()
    away = others(owner)[0]
    await stand.crash(away)
    values = [b"%d" % number for number in range(1000)]
    for at in range(0, len(values), 50):
        await stand.publish(*values[at : at + 50])
    await stand.stop(owner)
    await stand.start(owner)
    await stand.publish(b"next epoch")
    await stand.start(away)
    await stand.agree(*values, b"next epoch")


async def test_a_replica_that_lacks_a_million_records_gets_all_of_them(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    away = others(owner)[0]
    await stand.crash(away)
    count, size = 100, 10_000
    peer = await stand.peer(owner)
    data = batch(*[b"x" * 8] * size)
    for _ in range(count):
        (result,) = await peer.publish(TOPIC_ID, data)
        assert not result.HasField("error")
    await stand.start(away)
    copy = stand.partition(away)
    await settled(lambda: copy.state.high_watermark == copy.log.end_offset == count * size, "it does not catch up")
    assert copy.replica.state.tail.durable == stand.partition(owner).replica.state.tail.durable, "the same, by digest"
    (last, *_) = await (await stand.peer(away)).fetch(TOPIC_ID, count * size - 1)
    assert last.end_offset == count * size


async def test_every_replica_finds_records_by_time(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    peer = await stand.peer(owner)
    start_us = 1_700_000_000_000_000
    for number in range(200):
        stamps = [start_us + number * 1_000_000]
        await peer.publish(TOPIC_ID, batch(b"%d" % number * 500, timestamps_us=stamps))
    await settled(
        lambda: all(stand.partition(name).state.readable_end == 200 for name in NODES), "the copies are not level"
    )
    for name in NODES:
        for wanted in (0, 1, 77, 150, 199):
            found = await stand.partition(name).reader.find_by_time(start_us + wanted * 1_000_000 - 500_000)
            assert found is not None, (name, wanted)
            assert found[0] == wanted
    await stand.crash(owner)
    second = await stand.owner(but=owner)
    entry = pb.ListOffsetsEntry(topic_id=TOPIC_ID, timestamp_us=start_us + 150_000_000)
    reply = await (await stand.peer(second)).ask(list_offsets=pb.ListOffsets(entries=[entry]))
    assert reply.envelope.list_offsets_reply.results[0].offset == 150
