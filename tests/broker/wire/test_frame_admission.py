"""Budget accounting of incomplete frames, and closing of slow senders when the budget is exhausted."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.metric import counted
from tests.broker.stand import Stand, settled
from tests.broker.wire.test_connection import padded_frame, publish_frame

from tidelog_broker.wire import frame_admission
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.frame_admission import FrameAdmission
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.flow import byte_budget
from tidelog_proto.flow.byte_budget import SlowSenders
from tidelog_proto.limits import FRAME_BYTES_MAX, MIB

BYTES_MAX = 1600
SLOW_AFTER_S = 0.05


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_admission, "SLOW_AFTER_S", SLOW_AFTER_S)
    monkeypatch.setattr(byte_budget, "WHOLE_WITHIN_S", SLOW_AFTER_S)
    monkeypatch.setattr(byte_budget, "SEARCH_INTERVAL_S", 0.0)


class Admitting:
    """One connection, and how much others have in flight."""

    def __init__(self, *, of_others: int = 0) -> None:
        self.budget = Budget(BYTES_MAX)
        self.budget.take_anyway(of_others)
        self.told: list[tuple[int, int]] = []
        self.arrived_bytes = 0
        self.coming = FrameAdmission(
            self.budget, SlowSenders(self.budget), lambda: self.arrived_bytes, lambda *told: self.told.append(told)
        )


async def test_incomplete_frame_is_counted_until_complete_or_dropped() -> None:
    stand = Admitting()
    assert stand.coming.has_room_for(700)
    stand.coming.size_bytes = 700
    stand.coming.watch()
    stand.arrived_bytes = 30
    assert stand.coming.held_bytes == 700
    stand.coming.cut()
    assert stand.told == [(700, 30)]
    assert stand.coming.whole() == 700
    assert stand.coming.forget() is None, "it is a request's now"
    assert stand.budget.used_bytes == 700
    stand.coming.size_bytes = 0
    assert stand.coming.forget() == 0, "a request without bytes counts as one"


async def test_frame_is_slow_if_its_rate_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "WHOLE_WITHIN_S", 30 * SLOW_AFTER_S)
    stand = Admitting()
    stand.coming.size_bytes = 600
    stand.coming.watch()
    now_s = asyncio.get_running_loop().time()
    assert not stand.coming.is_slow(now_s + SLOW_AFTER_S / 2), "too early to say"
    assert stand.coming.is_slow(now_s + 2 * SLOW_AFTER_S)
    stand.arrived_bytes = 50
    assert not stand.coming.is_slow(now_s + 2 * SLOW_AFTER_S)
    assert stand.coming.is_slow(now_s + 4 * SLOW_AFTER_S)


async def test_large_envelope_is_counted_while_it_arrives() -> None:
    stand = Admitting()
    assert stand.coming.gather(500)
    assert stand.coming.gather(800), "it is another one's turn"
    assert stand.budget.used_bytes == 800
    stand.coming.gathered()
    assert stand.budget.used_bytes == 0
    assert stand.coming.gather(500)
    assert stand.coming.forget() is None
    assert stand.budget.used_bytes == 0


@pytest.mark.parametrize(("size_bytes", "may"), [(100, True), (101, False)])
async def test_few_envelopes_may_exceed_the_budget(size_bytes: int, may: bool) -> None:
    stand = Admitting(of_others=BYTES_MAX)
    assert not stand.coming.has_room_for(size_bytes)
    assert stand.coming.gather(size_bytes) is may
    assert stand.budget.used_bytes == BYTES_MAX + (size_bytes if may else 0)


async def test_announced_attachments_that_never_arrive_do_not_block_other_clients(stand: Stand) -> None:
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    peer, hog = await stand.peer(), await stand.peer()
    topic = await peer.create()
    announced_bytes = FRAME_BYTES_MAX - 1024
    hog.send_raw(publish_frame(7, topic.topic_id, announced_bytes) + bytes(1000))
    await settled(lambda: node.server.budget.used_bytes == announced_bytes, "the announced frame is not counted")
    large = pb.Publish(entries=[pb.PublishEntry(topic_id=topic.topic_id, length=MIB)])
    async with asyncio.timeout(10):
        while (await peer.ask(bytes(MIB), publish=large)).envelope.error.code == pb.OVERLOADED:
            pass
        await hog.closed()
    assert node.server.budget.used_bytes == 0
    assert counted(node.broker.metrics.stalled) == 1


async def test_incomplete_envelopes_are_counted_and_do_not_block_other_clients(stand: Stand) -> None:
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    peer = await stand.peer()
    frame = padded_frame(pb.Envelope(correlation_id=1, topic_list=pb.TopicList()), 1_000_000)
    hogs = [await stand.peer() for _ in range(FRAME_BYTES_MAX // len(frame))]
    for hog in hogs:
        hog.send_raw(frame[:70_000])
    await settled(lambda: node.server.budget.used_bytes > 60 * MIB, "gathered bytes are not counted")
    number = peer.expect()
    full = FRAME_BYTES_MAX - node.server.budget.used_bytes
    assert full < len(frame)
    await asyncio.sleep(2 * SLOW_AFTER_S)
    peer.send_raw(padded_frame(pb.Envelope(correlation_id=number, topic_list=pb.TopicList()), 1_000_000))
    assert not (await peer.reply(number)).envelope.HasField("error")
    assert node.server.budget.used_bytes <= FRAME_BYTES_MAX // 2
    await hogs[-1].close()
    for hog in hogs:
        await hog.close()
    await settled(lambda: node.server.budget.used_bytes == 0, "the incomplete request is still counted")


async def test_large_envelope_beyond_the_budget_closes_its_connection(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_admission, "SLOW_AFTER_S", 60.0)
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    hog, *late = [await stand.peer() for _ in range(6)]
    hog.send_raw(publish_frame(7, bytes(16), FRAME_BYTES_MAX - 1024))
    await settled(lambda: node.server.budget.used_bytes > 0, "the announced frame is not counted")
    taken = [node.server.budget.used_bytes]
    part = padded_frame(pb.Envelope(correlation_id=9, topic_list=pb.TopicList()), 1_000_000)[:70_000]
    for one in late[:-1]:
        one.send_raw(part)
        await settled(lambda: node.server.budget.used_bytes > taken[-1], "the envelope is not counted")
        taken.append(node.server.budget.used_bytes)
    late[-1].send_raw(part)
    await late[-1].closed()
    assert [one.ended.is_set() for one in late] == [False, False, False, False, True]
    assert (await late[-1].event()).envelope.error.code == pb.OVERLOADED
