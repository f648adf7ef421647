"""Which requests a replica serves: offsets beyond the end, truncated offsets, lost ownership; three nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.peer import Peer
from tests.broker.stand import settled

from tidelog_broker.partition import access
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


async def asked(stand: ClusterStand, name: str, offset: int) -> pb.FetchResult:
    peer = await stand.peer(name)
    return (await peer.reply(peer.post_fetch(TOPIC_ID, offset))).envelope.fetch_reply.results[0]


async def test_offset_beyond_the_end_is_refused_by_the_owner_and_awaited_elsewhere(stand: ClusterStand) -> None:
    await stand.start()
    await stand.publish(b"a")
    await stand.publish(b"b")
    await stand.agree(b"a", b"b")
    owner = await stand.owner()
    for name in NODES:
        assert not (await asked(stand, name, 2)).HasField("error"), "there the next record comes"
        error = (await asked(stand, name, 3)).error
        assert error.code == (pb.OFFSET_OUT_OF_RANGE if name == owner else 0)
        assert (error.log_start_offset, error.high_watermark) == ((0, 2) if name == owner else (0, 0))


async def test_uncommitted_offset_is_awaited(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.holding(b"a", b"b")
    assert stand.partition(owner).state.high_watermark == 1
    assert not (await asked(stand, owner, 2)).HasField("error")
    assert (await asked(stand, owner, 3)).error.code == pb.OFFSET_OUT_OF_RANGE


async def test_deposed_owner_reports_no_offset_out_of_range(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CONFIRM_TIMEOUT_S", 0.1)
    await stand.start()
    await stand.publish(b"a")
    await stand.agree(b"a")
    old = await stand.owner()
    stand.suspect(old)
    new = await stand.owner(but=old)
    await stand.publish(b"b", to=new)
    assert stand.partition(old).state.lies_beyond(2), "the node does not know the offset"
    assert (await asked(stand, old, 2)).error.code == pb.QUORUM_LOST
    assert not (await asked(stand, new, 2)).HasField("error")
    assert (await asked(stand, new, 3)).error.code == pb.OFFSET_OUT_OF_RANGE


async def test_subscription_beyond_the_end_is_ended_once_there_is_an_owner(stand: ClusterStand) -> None:
    await stand.start()
    await stand.publish(b"a")
    await stand.agree(b"a")
    owner = await stand.owner()
    peers = {name: await stand.peer(name) for name in NODES if name != owner}
    for peer in peers.values():
        entries = [pb.SubscribeEntry(topic_id=TOPIC_ID, offset=5)]
        subscribe = pb.Subscribe(subscription_id=1, entries=entries, credit_records=10, credit_bytes=1 << 20)
        reply = (await peer.ask(subscribe=subscribe)).envelope.subscribe_reply
        assert not reply.results[0].HasField("error"), "a follower cannot tell"
    await stand.crash(owner)
    new = await stand.owner(but=owner)
    ended = (await peers[new].event()).envelope.subscription_ended
    assert (ended.error.code, ended.error.high_watermark) == (pb.OFFSET_OUT_OF_RANGE, 1)


async def begun(peer: Peer, number: int, offset: int, record_epoch: int) -> pb.Error:
    """Subscribe from the position after the last record of an epoch that a reader has seen."""
    entries = [pb.SubscribeEntry(topic_id=TOPIC_ID, offset=offset, record_epoch=record_epoch)]
    subscribe = pb.Subscribe(subscription_id=number, entries=entries, credit_records=1, credit_bytes=1 << 20)
    (result,) = (await peer.ask(subscribe=subscribe)).envelope.subscribe_reply.results
    return result.error


async def test_reader_of_truncated_records_gets_out_of_range(stand: ClusterStand) -> None:
    await stand.start()
    await stand.publish(b"a")
    await stand.agree(b"a")
    first = await stand.owner()
    first_epoch = stand.partition(first).state.epoch
    await stand.crash(first)
    owner = await stand.owner(but=first)
    await stand.publish(b"b")
    await stand.publish(b"c")
    await stand.agree(b"a", b"b", b"c")
    epoch = stand.partition(owner).state.epoch
    assert epoch > first_epoch
    peer = await stand.peer(owner)
    for number, (offset, record_epoch) in enumerate([(1, first_epoch), (3, epoch), (2, epoch)]):
        assert not (await begun(peer, number, offset, record_epoch)).code
    # In the first epoch no record at offset 1 was committed, so the log was truncated there for every reader.
    for offset, record_epoch in [(2, first_epoch), (1, epoch + 1)]:
        error = await begun(peer, 9, offset, record_epoch)
        assert (error.code, error.log_start_offset, error.high_watermark) == (pb.OFFSET_OUT_OF_RANGE, 0, 3)
        assert f"is after the end of its epoch {record_epoch}" in error.message
    follower = await stand.peer(next(name for name in stand.nodes if name != owner))
    assert (await begun(follower, 1, 2, first_epoch)).code == pb.NOT_OWNER, "the owner knows"
    assert not (await begun(follower, 2, 1, first_epoch)).code


async def test_ownership_is_confirmed_only_by_other_replicas(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.start()
    owner = await stand.owner()
    partition = stand.partition(owner)
    await partition.access.confirm_owner()
    await asyncio.gather(*(partition.access.confirm_owner() for _ in range(50)))
    assert not partition.access._confirmations
    for name in NODES:
        if name != owner:
            with pytest.raises(ProtocolError) as refused:
                await stand.partition(name).access.confirm_owner()
            assert (refused.value.code, refused.value.epoch) == (pb.NOT_OWNER, partition.state.epoch)
    monkeypatch.setattr(access, "CONFIRM_TIMEOUT_S", 0.1)
    stand.cut = {owner}
    with pytest.raises(ProtocolError) as alone:
        await partition.access.confirm_owner()
    assert alone.value.code == pb.QUORUM_LOST
    assert not partition.access._confirmations


async def test_waiting_for_ownership_ends_when_another_node_takes_over(stand: ClusterStand) -> None:
    await stand.start()
    owner = await stand.owner()
    partition = stand.partition(owner)
    await partition.access.ensure_active()
    await stand.publish(b"a")
    await stand.crash(owner)
    second = await stand.owner(but=owner)
    await stand.start(owner)
    back = stand.partition(owner)
    await settled(lambda: back.state.epoch == stand.partition(second).state.epoch, "the decision did not arrive")
    with pytest.raises(ProtocolError) as moved:
        await back.access.ensure_active()
    assert moved.value.code == pb.NOT_OWNER
    await back.access.ensure_readable()
