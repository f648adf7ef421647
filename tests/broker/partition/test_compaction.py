"""Compaction in a cluster: the owner's passes are decided, and all copies become equal byte by byte."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, StandCluster, others
from tests.broker.partition.compaction_stand import alike, compact, compacting, configure, latest, publish, send
from tests.broker.stand import settled
from tests.broker.storage.partition.keyed import all_records

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.partition import compacted_versions as versions_module
from tidelog_broker.partition import compaction as compaction_module
from tidelog_broker.partition.access import Access
from tidelog_broker.partition.compaction_pace import CompactionPace
from tidelog_broker.server.handlers import compaction as compaction_handler
from tidelog_broker.storage.partition import compaction_pass
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, FinishedVersion
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with compacting(tmp_path) as stand:
        yield stand


async def test_every_copy_keeps_the_newest_record_of_each_key(cluster: ClusterStand) -> None:
    for number in range(6):
        await publish(cluster, (b"a", b"a%d" % number), (b"b", b"b%d" % number), (b"c%d" % number, b""))
    await publish(cluster, (b"b", None))
    done = await compact(cluster)
    assert done.below == 19
    await alike(cluster)
    for name in NODES:
        records = all_records(cluster.partition(name).log)
        assert [record.offset for record in records] == [2, 5, 8, 11, 14, 15, 17, 18]
        assert latest(cluster, name)[b"a"] == b"a5"
        assert latest(cluster, name)[b"b"] is None
    await publish(cluster, (b"a", b"new"))
    await compact(cluster)
    await alike(cluster)
    assert latest(cluster, "c")[b"a"] == b"new"


async def test_tombstones_are_removed_by_a_later_pass(cluster: ClusterStand) -> None:
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"))
    await publish(cluster, (b"a", None))
    await settled(
        lambda: (
            [record.offset for record in all_records(cluster.partition("a").log)] == [1, 2]
            or cluster.partition("a").replica.state.chain.compactions == {}
        ),
        "",
    )
    await compact(cluster)
    await settled(
        lambda: all([one.offset for one in all_records(cluster.partition(name).log)] == [1] for name in NODES),
        "the tombstone stays",
    )
    await alike(cluster)


@pytest.mark.parametrize(("after_us", "left"), [(59_999_999, [1]), (60_000_000, [])])
async def test_tombstone_stays_for_its_time_after_the_first_pass_that_saw_it(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch, after_us: int, left: list[int]
) -> None:
    await configure(cluster, tombstone_retention_ms=60_000)
    await publish(cluster, (b"a", b"1"), (b"a", None))
    await compact(cluster)
    await alike(cluster)
    owner = await cluster.owner()
    compaction = cluster.partition(owner).compaction
    (decided_us,) = {one.decided_us for one in compaction.rounds()}
    monkeypatch.setattr(cluster.nodes[owner].broker.clock, "now_us", lambda: decided_us + after_us)
    await compact(cluster)
    await alike(cluster)
    assert [one.offset for one in all_records(cluster.partition(owner).log)] == left


async def test_pass_that_changes_nothing_counts_for_tombstones(cluster: ClusterStand) -> None:
    """Else it would be due again at once, and for ever."""
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"))
    assert (await compact(cluster)).below == 1
    await asyncio.sleep(0.01)
    await compact(cluster)
    await alike(cluster)
    assert not cluster.partition(await cluster.owner()).compaction.is_due()


async def test_epoch_that_fits_no_batch_makes_no_pass_due(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = cluster.partition(await cluster.owner())
    stuck = partition.state.epoch

    class Narrow(Deriver):
        def finish(self) -> list[bytearray]:
            if self._epoch == stuck:
                raise ProtocolError(pb.BATCH_TOO_LARGE, "too large")
            return super().finish()

    monkeypatch.setattr(compaction_pass, "Deriver", Narrow)
    value = b"v" * 50_000
    await publish(cluster, (b"a", value))
    await publish(cluster, (b"b", value))
    await compact(cluster)
    await configure(cluster, dirty_percent=50)
    assert partition.compaction.left == {stuck}
    assert not partition.compaction.is_due(), "a pass would leave the epoch as it is, again and again"
    monkeypatch.setattr(partition.compaction, "left", frozenset())
    assert partition.compaction.is_due(), "the epoch is too small to matter"


async def test_pass_over_more_epochs_than_fit_one_decision_compacts_all_of_them(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_module, "COMPACTIONS_MAX", 1)
    compaction = cluster.partition(await cluster.owner()).compaction
    for number in range(4):
        await publish(cluster, (b"a", b"%d" % number))
        await compaction.end_epoch(())
    await compact(cluster)
    await alike(cluster)
    assert [one.offset for one in all_records(cluster.partition("a").log)] == [3]


async def test_partition_that_is_being_moved_is_not_compacted_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_module.Compaction, "check", lambda _: asyncio.sleep(0))
    async with compacting(tmp_path) as cluster:
        await configure(cluster, dirty_percent=0)
        for _ in range(2):
            await publish(cluster, (b"a", b"v" * 50_000))
        partitions = [cluster.partition(name) for name in NODES]
        await settled(lambda: any(one.compaction.is_due() for one in partitions), "no owner is to compact")
        monkeypatch.setattr(type(partitions[0].state), "is_moving", property(lambda _: True))
        assert not any(one.compaction.is_due() for one in partitions)


async def test_epoch_is_compacted_when_its_last_record_is_as_old_as_the_lag(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configure(cluster, compaction_lag_ms=1_000)
    owner = await cluster.owner()
    compaction = cluster.partition(owner).compaction
    monkeypatch.setattr(cluster.nodes[owner].broker.clock, "now_us", lambda: 5_000_000)
    assert compaction.horizon_of([(10, 3_000_000), (20, 4_000_000), (30, 4_000_001)]) == 20
    await configure(cluster, compaction_lag_ms=0)
    assert compaction.horizon_of([(10, 3_000_000), (20, 5_000_001)]) == 20


async def test_pass_is_discarded_after_a_change_of_ownership(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That node has compacted more and dropped a tombstone, without which the value of this pass would be back."""
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"))
    first = await cluster.owner()
    second = others(first)[0]
    made, go_on, run = threading.Event(), threading.Event(), CompactionPass.run

    def held(one: CompactionPass) -> list[FinishedVersion]:
        passed, is_first = run(one), not made.is_set()
        made.set()
        assert not is_first or go_on.wait(60), "the test never let go"
        return passed

    monkeypatch.setattr(CompactionPass, "run", held)
    passing = asyncio.create_task(cluster.partition(first).compaction.run_now())
    await settled(made.is_set, "no pass was made")
    cluster.partition(first).driver.roll_over(Plan(second, NODES, 2, pb.ALWAYS))
    await settled(lambda: cluster.owners() == [second], "the partition was not handed over")
    await publish(cluster, (b"a", None))
    for value in (b"3", b"4"):
        await publish(cluster, (b"b", value))
        await compact(cluster)
    await settled(lambda: b"a" not in latest(cluster, second), "the tombstone stays")
    cluster.partition(second).driver.roll_over(Plan(first, NODES, 2, pb.ALWAYS))
    await settled(lambda: cluster.owners() == [first], "the partition was not handed back")
    go_on.set()
    with pytest.raises(ProtocolError) as refused:
        await passing
    assert refused.value.code == pb.EPOCH_CHANGING
    monkeypatch.undo()
    await compact(cluster)
    await alike(cluster)
    assert all(latest(cluster, name) == {b"b": b"4"} for name in NODES)


async def test_node_that_was_down_converges_to_the_same_bytes(cluster: ClusterStand) -> None:
    await publish(cluster, *((b"k%d" % (number % 5), b"v" * 100) for number in range(200)))
    away = others(await cluster.owner())[0]
    await cluster.crash(away)
    for number in range(3):
        await publish(cluster, *((b"k%d" % each, b"%d" % number) for each in range(5)))
        await compact(cluster)
    await cluster.start(away)
    await configure(cluster)
    await alike(cluster)
    assert len(all_records(cluster.partition(away).log)) == 5


async def test_compacted_versions_survive_a_restart(cluster: ClusterStand) -> None:
    for number in range(50):
        await publish(cluster, (b"k", b"%d" % number))
    await compact(cluster)
    await alike(cluster)
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    await cluster.owner()
    await alike(cluster)
    assert latest(cluster, "a") == {b"k": b"49"}


async def test_takeover_knows_the_producer_state_of_compacted_epochs(cluster: ClusterStand) -> None:
    def numbered(sequence: int) -> bytes:
        columns = columns_of([b"v%d" % sequence], keys=[b"k"])
        return encode_batch(columns, now_us=1, producer_id=7, base_sequence=sequence).to_bytes()

    offsets = [await send(cluster, numbered(sequence)) for sequence in range(4)]
    await compact(cluster)
    await alike(cluster)
    owner = await cluster.owner()
    await cluster.crash(owner)
    await cluster.owner(but=owner)
    assert await send(cluster, numbered(3)) == offsets[3], "a retry gets its first offset"
    assert await send(cluster, numbered(4)) == 4


async def test_epoch_that_fits_no_batch_is_unchanged_and_keeps_later_tombstones(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"), (b"b", b"3"))
    stuck = cluster.partition(await cluster.owner()).state.epoch

    class Narrow(Deriver):
        def finish(self) -> list[bytearray]:
            if self._epoch == stuck:
                raise ProtocolError(pb.BATCH_TOO_LARGE, "too large")
            return super().finish()

    monkeypatch.setattr(compaction_pass, "Deriver", Narrow)
    for number in range(3):
        await compact(cluster)
        await publish(cluster, (b"a", None), (b"b", b"later"), (b"c", b"%d" % number))
    await compact(cluster)
    await alike(cluster)
    for name in NODES:
        assert [one.offset for one in all_records(cluster.partition(name).log)] == [0, 1, 2, 9, 10, 11]
        assert latest(cluster, name)[b"a"] is None
    epoch = cluster.partition(await cluster.owner()).state.epoch
    await asyncio.sleep(0.3)
    assert cluster.partition(await cluster.owner()).state.epoch == epoch, "passes continue without work"
    monkeypatch.undo()
    await compact(cluster)
    await settled(
        lambda: all([one.offset for one in all_records(cluster.partition(name).log)] == [10, 11] for name in NODES),
        "the epoch stays as it was",
    )


async def test_requested_compaction_checks_settings_and_ownership(cluster: ClusterStand) -> None:
    await publish(cluster, (b"a", b"1"))
    owner = await cluster.owner()
    with pytest.raises(ProtocolError) as caught:
        await cluster.partition(others(owner)[0]).compaction.run_now()
    assert caught.value.code == pb.NOT_OWNER
    await configure(cluster, hold=True)
    with pytest.raises(ProtocolError, match="on hold"):
        await compact(cluster)
    await configure(cluster, hold=False, cleanup=pb.DELETE)
    with pytest.raises(ProtocolError, match="not compacted by its settings"):
        await compact(cluster)


# ------------------------------------------------------------------------------- passes that do not move


async def asked(stand: ClusterStand, node_id: str) -> pb.Error:
    """Return a node's answer to a request for a compaction pass."""
    peer = await stand.peer(node_id)
    entry = pb.CompactEntry(topic_id=TOPIC_ID, partition=0)
    (result,) = (await peer.ask(compact=pb.Compact(entries=[entry]))).envelope.compact_reply.results
    return result.error


async def test_unresponsive_copies_are_named_in_the_error(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes do not suspect the dead ones yet, so the end of the epoch is proposed, and not decided."""
    monkeypatch.setattr(compaction_module, "DECIDE_S", 0.2)
    monkeypatch.setattr(compaction_handler, "OWNER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(StandCluster, "is_alone", property(lambda _: False))  # a node tries again what may move
    await publish(cluster, (b"a", b"1"))
    owner = await cluster.owner()
    deaf = others(owner)
    for name in deaf:
        monkeypatch.setattr(cluster.partition(name).driver, "receive", lambda *_: None)
    async with asyncio.timeout(5):
        error = await asked(cluster, owner)
    assert (error.code, error.retriable) == (pb.EPOCH_CHANGING, True)
    named = f"the copies on {', '.join(map(repr, sorted(deaf)))}"
    decision_waits, owner_waits = f"the decision waits for {named}; send again", f"{named} did not answer"
    assert decision_waits in error.message or owner_waits in error.message


async def test_owner_that_cannot_write_yet_names_the_awaited_copies(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_handler, "OWNER_TIMEOUT_S", 0.1)
    owner = await cluster.owner()

    async def never(_: Access) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Access, "ensure_active", never)
    async with asyncio.timeout(5):
        error = await asked(cluster, owner)
    assert error.code == pb.EPOCH_CHANGING
    assert "cannot write yet: the copies on" in error.message


async def test_hanging_pass_times_out_and_continues_later(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_module, "NO_PROGRESS_S", 0.3)
    monkeypatch.setattr(compaction_module, "LOOK_S", 0.05)
    go_on, run = threading.Event(), CompactionPass.run

    def hang(one: CompactionPass) -> list[FinishedVersion]:
        assert go_on.wait(20), "the test never let go"
        return run(one)

    monkeypatch.setattr(CompactionPass, "run", hang)
    await publish(cluster, (b"a", b"1"), (b"a", b"2"))
    owner = await cluster.owner()
    try:
        for _ in range(2):  # the second one waits for its turn behind the first
            async with asyncio.timeout(5):
                error = await asked(cluster, owner)
            assert error.code == pb.TIMED_OUT
            assert "the compaction has made no progress for" in error.message
            assert "this node's disk" in error.message
    finally:
        go_on.set()
    await settled(lambda: latest(cluster, owner) == {b"a": b"2"}, "the rest of the pass has not continued")
    assert (await asked(cluster, owner)).code == 0


async def test_slow_pass_with_progress_is_awaited(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "NO_PROGRESS_S", 0.3)
    monkeypatch.setattr(compaction_module, "LOOK_S", 0.05)
    await publish(cluster, *((b"k%d" % number, b"v" * 1000) for number in range(20)))
    owner = await cluster.owner()
    size_bytes = cluster.partition(owner).log.size_bytes
    monkeypatch.setattr(
        versions_module, "CompactionPace", lambda loop, _, **rest: CompactionPace(loop, size_bytes, **rest)
    )
    began_s = asyncio.get_running_loop().time()
    asking = asyncio.create_task(asked(cluster, owner))
    compactor = cluster.nodes[owner].broker.threads.compactor
    await settled(lambda: compactor.rests, "the pass reports no rest")
    assert (await asking).code == 0
    assert not compactor.rests
    assert asyncio.get_running_loop().time() - began_s > 0.5, "it was not slow, and the test sees nothing"
