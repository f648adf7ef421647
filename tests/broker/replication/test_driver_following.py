"""Order of a follower's effects: the owner waits for its acknowledgement, its readers for the rest."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.broker.cluster_stand import TOPIC_ID, ClusterStand, others, started_cluster
from tests.broker.stand import settled

from tidelog_broker.core.replication.effects import Append, PeerMessage
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


async def test_follower_acknowledges_before_other_work(stand: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    await stand.start()
    await stand.publish(b"a")
    await stand.agree(b"a")
    follower, done = stand.partition(others(await stand.owner())[0]), list[str]()
    send, appended = follower.tools.neighbours.send, follower.appended

    def noted_send(to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
        if isinstance(message, pb.ReplicationAck) and message.end_offset == 2:
            done.append("acknowledged")
        send(to, message, batches)

    def noted_appended(appends: Sequence[Append], *, seconds: float) -> None:
        done.append("counted")
        appended(appends, seconds=seconds)

    monkeypatch.setattr(follower.tools.neighbours, "send", noted_send)
    monkeypatch.setattr(follower, "appended", noted_appended)
    await stand.publish(b"b")
    await settled(lambda: done == ["acknowledged", "counted"], f"{done}")


async def test_a_follower_feeds_its_ring_in_the_order_of_the_log(stand: ClusterStand) -> None:
    """One write is on the worker, the next one is queued meanwhile and quick enough to be done on the loop."""
    await stand.start(flush=pb.NEVER)
    await stand.publish(b"a")
    await stand.agree(b"a")
    owner = await stand.owner()
    name = others(owner)[0]
    follower, peer = stand.partition(name), await stand.peer(name)
    entry = pb.SubscribeEntry(topic_id=TOPIC_ID, offset=1)
    await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=99, credit_bytes=10**6))
    stand.disks[name].hold("write")
    await stand.publish(b"b", to=owner)
    await stand.disks[name].held_up()
    await stand.publish(b"c", to=owner)
    await settled(lambda: len(follower.driver._queue) == 2, "nothing waits for the write")
    # From here on, whatever is small is written on the loop.
    stand.nodes[name].broker.inline_writes.took(0, math.inf, -math.inf, sleeps_before=-1)
    stand.disks[name].heal()
    await settled(lambda: follower.state.readable_end == 3, "it is not written")
    assert (follower.ring.end_offset, follower.log.end_offset) == (3, 3)
    async with asyncio.timeout(10):
        while (await peer.event()).envelope.message_event.next_offset < 3:
            pass


async def test_follower_checks_its_deadline_only_if_an_append_may_move_it(stand: ClusterStand) -> None:
    await stand.start()
    await stand.publish(b"a")
    await stand.agree(b"a")
    driver, looked_at = stand.partition(others(await stand.owner())[0]).driver, list[ReplicaDriver]()
    driver._schedule_later = looked_at.append
    await stand.publish(b"b")
    await stand.agree(b"a", b"b")
    assert looked_at == []
    active = driver.replica.state.active
    ahead = pb.AppendBatch(
        topic_id=TOPIC_ID,
        epoch=active.epoch,
        owner=active.owner,
        owner_incarnation=active.owner_incarnation,
        base_offset=9,
        end_offset=9,
    )
    driver.receive(active.owner, ahead, ())
    assert looked_at == [driver], "no request is repeated"
