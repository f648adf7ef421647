"""Closing of slow senders when the request budget is exhausted."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.metric import counted
from tests.broker.stand import Stand, settled
from tests.broker.wire.test_connection import padded_frame, publish_frame

from tidelog_broker.wire import slow_senders as slow_senders_module
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.slow_senders import SlowSenders
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import FRAME_BYTES_MAX, MIB

SLOW_AFTER_S = 0.05


class FakeSender:
    """A connection; as much comes as the test says."""

    def __init__(self, budget: Budget, size_bytes: int, arrived_bytes: int = 0) -> None:
        self.budget = budget
        self.size_bytes = size_bytes
        self.arrived_bytes = arrived_bytes
        self.cut = False
        assert budget.admit(size_bytes)

    def announced(self) -> tuple[int, int]:
        return self.size_bytes, self.arrived_bytes

    def close_slow(self) -> None:
        self.cut = True
        self.budget.give_back(self.size_bytes)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_senders_module, "SLOW_AFTER_S", SLOW_AFTER_S)
    monkeypatch.setattr(slow_senders_module, "WHOLE_WITHIN_S", SLOW_AFTER_S)
    monkeypatch.setattr(slow_senders_module, "LOOK_AGAIN_S", 0.0)


async def test_slow_senders_are_closed_largest_first() -> None:
    budget = Budget(100)
    slow_senders = SlowSenders(budget)
    small, large, whole = (FakeSender(budget, size) for size in (20, 60, 20))
    for sender in (small, large, whole):
        slow_senders.add(sender)
    slow_senders.remove(whole)
    assert not slow_senders.make_room(10), "the sender has no deadline yet"
    await asyncio.sleep(2 * SLOW_AFTER_S)
    assert slow_senders.make_room(10)
    assert (small.cut, large.cut, whole.cut) == (False, True, False)
    assert slow_senders.make_room(50), "half of the budget is free"
    assert not small.cut


async def test_fast_sender_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_senders_module, "WHOLE_WITHIN_S", 30 * SLOW_AFTER_S)
    budget = Budget(100)
    slow_senders = SlowSenders(budget)
    brisk, slow = FakeSender(budget, 50, arrived_bytes=40), FakeSender(budget, 50, arrived_bytes=1)
    slow_senders.add(brisk)
    slow_senders.add(slow)
    await asyncio.sleep(2 * SLOW_AFTER_S)
    assert slow_senders.make_room(10)
    assert (brisk.cut, slow.cut) == (False, True)


async def test_announced_attachments_that_never_arrive_do_not_block_other_clients(stand: Stand) -> None:
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    peer, hog = await stand.peer(), await stand.peer()
    topic = await peer.create()
    announced_bytes = FRAME_BYTES_MAX - 1024
    hog.send_raw(publish_frame(7, topic.topic_id, announced_bytes) + bytes(1000))
    await settled(lambda: node.server.budget.in_flight_bytes == announced_bytes, "the announced frame is not counted")
    large = pb.Publish(entries=[pb.PublishEntry(topic_id=topic.topic_id, length=MIB)])
    async with asyncio.timeout(10):
        while (await peer.ask(bytes(MIB), publish=large)).envelope.error.code == pb.OVERLOADED:
            pass
        await hog.closed()
    assert node.server.budget.in_flight_bytes == 0
    assert counted(node.broker.metrics.stalled) == 1


async def test_incomplete_envelopes_are_counted_and_do_not_block_other_clients(stand: Stand) -> None:
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    peer = await stand.peer()
    frame = padded_frame(pb.Envelope(correlation_id=1, topic_list=pb.TopicList()), 1_000_000)
    hogs = [await stand.peer() for _ in range(FRAME_BYTES_MAX // len(frame))]
    for hog in hogs:
        hog.send_raw(frame[:70_000])
    await settled(lambda: node.server.budget.in_flight_bytes > 60 * MIB, "gathered bytes are not counted")
    number = peer.expect()
    full = FRAME_BYTES_MAX - node.server.budget.in_flight_bytes
    assert full < len(frame)
    await asyncio.sleep(2 * SLOW_AFTER_S)
    peer.send_raw(padded_frame(pb.Envelope(correlation_id=number, topic_list=pb.TopicList()), 1_000_000))
    assert not (await peer.reply(number)).envelope.HasField("error")
    assert node.server.budget.in_flight_bytes <= FRAME_BYTES_MAX // 2
    await hogs[-1].close()
    for hog in hogs:
        await hog.close()
    await settled(lambda: node.server.budget.in_flight_bytes == 0, "the incomplete request is still counted")


async def test_large_envelope_beyond_the_budget_closes_its_connection(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_senders_module, "SLOW_AFTER_S", 60.0)
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    hog, *late = [await stand.peer() for _ in range(6)]
    hog.send_raw(publish_frame(7, bytes(16), FRAME_BYTES_MAX - 1024))
    await settled(lambda: node.server.budget.in_flight_bytes > 0, "the announced frame is not counted")
    taken = [node.server.budget.in_flight_bytes]
    part = padded_frame(pb.Envelope(correlation_id=9, topic_list=pb.TopicList()), 1_000_000)[:70_000]
    for one in late[:-1]:
        one.send_raw(part)
        await settled(lambda: node.server.budget.in_flight_bytes > taken[-1], "the envelope is not counted")
        taken.append(node.server.budget.in_flight_bytes)
    late[-1].send_raw(part)
    await late[-1].closed()
    assert [one.ended.is_set() for one in late] == [False, False, False, False, True]
    assert (await late[-1].event()).envelope.error.code == pb.OVERLOADED
