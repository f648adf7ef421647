from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from tests.broker.linked import TOPIC, Ear, append
from tests.broker.peer import batch

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.one_way import FEW_BATCHES, VERIFY_FEW_BYTES, VERIFY_ON_LOOP_BYTES, Inbox, LinkMessage, Outbox
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_PEER_MESSAGE_MAX, MIB
from tidelog_proto.wire.frames import Frame

BIG = batch(b"x" * (VERIFY_FEW_BYTES + 1))
BUDGET_BYTES = 16 * MIB


Received = Callable[[str, LinkMessage, Sequence[Batch]], None]


class Stand:
    """An inbox with everything around it, and frames as a node would send them."""

    def __init__(self, workers: IoWorkers) -> None:
        self.workers = workers
        self.ear = Ear()
        self.budget = Budget(BUDGET_BYTES)
        self.metrics = NodeMetrics()
        self.received: Received = self.ear
        """Receiver of the arriving messages."""
        self.inbox = self.make(self.hand_on)

    def hand_on(self, peer_id: str, message: LinkMessage, batches: Sequence[Batch]) -> None:
        self.received(peer_id, message, batches)

    def make(self, received: Received) -> Inbox:
        return Inbox(
            "b",
            7,
            received=received,
            budget=self.budget,
            verifiers=Offload(self.workers, asyncio.get_running_loop()),
            metrics=self.metrics,
        )

    def take(self, *messages: tuple[LinkMessage, Sequence[bytes]]) -> None:
        box = Outbox()
        for message, batches in messages:
            box.put(message, [memoryview(one) for one in batches])
        for outgoing in box.drain():
            self.take_frame(outgoing.envelope, b"".join(outgoing.attachment))

    def take_frame(self, envelope: pb.Envelope, attachment: bytes = b"") -> None:
        assert self.inbox.admit(len(attachment))
        self.inbox.take(Frame(envelope, memoryview(attachment)))

    @property
    def dropped(self) -> int:
        return self.metrics.peer_dropped_in.tally("b").value


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    workers = IoWorkers(1, name="verify")
    stand = Stand(workers)
    yield stand
    workers.close()
    await asyncio.sleep(0)  # answers of the worker that were on their way
    stand.inbox.close()
    assert stand.budget.used_bytes == 0


async def test_entries_are_delivered_with_their_batches(stand: Stand) -> None:
    one, two, three = (batch(text * 10) for text in (b"1", b"2", b"3"))
    stand.take((append(1, 0), [one, two]), (append(2, 1), []), (append(3, 2), [three]))
    got = stand.ear.got
    assert [(peer, message.epoch, message.length) for peer, message, _ in got] == [
        ("b", 1, len(one) + len(two)),
        ("b", 2, 0),
        ("b", 3, len(three)),
    ]
    assert [[bytes(found.data) for found in batches] for _, _, batches in got] == [[one, two], [], [three]]
    assert got[0][2][0].header.record_count == 1
    assert stand.metrics.peer_bytes_in.tally("b").value == len(one + two + three)


async def test_backfill_reply_is_a_single_message(stand: Stand) -> None:
    data = batch(b"x")
    stand.take((pb.BackfillReply(topic_id=TOPIC, epoch=3), [data]))
    ((_, message, batches),) = stand.ear.got
    assert (message.epoch, [bytes(one.data) for one in batches]) == (3, [data])


async def test_large_messages_are_verified_on_a_worker_in_order(stand: Stand) -> None:
    stand.take((append(1), [BIG]))
    stand.take((append(2), [batch(b"x")]))
    stand.take((append(3), [BIG]))
    stand.take((append(4), []))
    assert not stand.ear.got
    assert stand.budget.used_bytes > 2 * len(BIG)
    got = await stand.ear.heard(4)
    assert [message.epoch for _, message, _ in got] == [1, 2, 3, 4]
    assert bytes(got[2][2][0].data) == BIG
    assert stand.budget.used_bytes == 0


@pytest.mark.parametrize(("count", "is_here"), [(FEW_BATCHES, True), (FEW_BATCHES + 1, False)])
async def test_few_large_batches_are_verified_on_the_event_loop(stand: Stand, count: int, is_here: bool) -> None:
    data = batch(b"x" * (VERIFY_ON_LOOP_BYTES // 15))
    stand.take((append(1), [data] * count))
    assert len(stand.ear.got) == is_here
    ((_, _, batches),) = await stand.ear.heard(1)
    assert len(batches) == count


async def test_single_large_batch_is_verified_on_the_event_loop(stand: Stand) -> None:
    stand.take((append(1), [batch(b"x" * (VERIFY_ON_LOOP_BYTES + 1))]))
    assert len(stand.ear.got) == 1


async def test_message_verified_on_the_loop_waits_for_earlier_worker_results(stand: Stand) -> None:
    few = batch(b"x" * (VERIFY_ON_LOOP_BYTES + 1))
    stand.take((append(1), [BIG]))
    stand.take((append(2), [few]))
    assert not stand.ear.got
    assert [message.epoch for _, message, _ in await stand.ear.heard(2)] == [1, 2]
    assert stand.budget.used_bytes == 0


async def test_malformed_first_batch_does_not_bypass_the_worker(stand: Stand) -> None:
    data = batch(b"x" * (VERIFY_ON_LOOP_BYTES // FEW_BATCHES))
    entries = [append(1, 0), append(2, 1)]
    entries[0].length, entries[1].length = len(data), len(data) * (FEW_BATCHES + 1)
    stand.take_frame(
        pb.Envelope(append_batch=pb.AppendBatches(entries=entries)), bytes(len(data)) + data * (FEW_BATCHES + 1)
    )
    assert not stand.ear.got
    assert stand.dropped == 0
    ((_, message, _),) = await stand.ear.heard(1)
    assert (message.epoch, stand.dropped) == (2, 1)


async def test_batches_of_all_entries_are_counted_together(stand: Stand) -> None:
    data = batch(b"x" * (VERIFY_ON_LOOP_BYTES // FEW_BATCHES))
    entries = [append(number, number) for number in range(FEW_BATCHES + 1)]
    for entry in entries:
        entry.length = len(data)
    stand.take_frame(pb.Envelope(append_batch=pb.AppendBatches(entries=entries)), data * len(entries))
    assert not stand.ear.got
    await stand.ear.heard(len(entries))


@pytest.mark.parametrize("size", [10, VERIFY_ON_LOOP_BYTES + 1, VERIFY_FEW_BYTES + 1])
@pytest.mark.parametrize("at", [20, 130, -1], ids=["header", "body", "end"])
async def test_corrupt_batch_drops_only_its_entry(stand: Stand, size: int, at: int) -> None:
    damaged = bytearray(batch(b"x" * size))
    damaged[at] ^= 1
    sound = batch(b"sound")
    entries = [append(1, 0), append(2, 1), append(3, 2)]
    for entry, data in zip(entries, (sound, damaged, sound), strict=True):
        entry.length = len(data)
    stand.take_frame(pb.Envelope(append_batch=pb.AppendBatches(entries=entries)), sound + damaged + sound)
    got = await stand.ear.heard(2)
    assert [message.epoch for _, message, _ in got] == [1, 3]
    assert stand.dropped == 1


async def test_entry_with_an_incomplete_batch_is_dropped(stand: Stand) -> None:
    stand.take((append(1), [batch(b"x")[:-1]]), (append(2, 1), [b"junk"]), (append(3, 2), []))
    assert [message.epoch for _, message, _ in stand.ear.got] == [3]
    assert stand.dropped == 2


@pytest.mark.parametrize(
    ("envelope", "attachment"),
    [
        (pb.Envelope(append_batch=pb.AppendBatches(entries=[pb.AppendBatch(length=5)])), b"1234"),
        (pb.Envelope(append_batch=pb.AppendBatches(entries=[pb.AppendBatch(length=2**32 - 1)])), b"1234"),
        (pb.Envelope(append_batch=pb.AppendBatches()), b"1234"),
        (pb.Envelope(backfill_reply=pb.BackfillReply(length=1)), b""),
        (pb.Envelope(replication_ack=pb.ReplicationAcks()), b"1234"),
        (pb.Envelope(pre_vote=pb.PreVotes(entries=[pb.PreVote()] * (ENTRIES_PER_PEER_MESSAGE_MAX + 1))), b""),
        (pb.Envelope(publish=pb.Publish()), b""),
        (pb.Envelope(), b""),
    ],
    ids=["short", "far too long", "no entry", "no attachment", "no batches", "entries", "request", "nothing"],
)
async def test_malformed_message_is_refused(stand: Stand, envelope: pb.Envelope, attachment: bytes) -> None:
    with pytest.raises(ProtocolError):
        stand.take_frame(envelope, attachment)
    assert not stand.ear.got


async def test_full_budget_declines_batches_and_accepts_bare_messages(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.budget.take(BUDGET_BYTES - 10)
    assert not stand.inbox.admit(11)
    assert stand.dropped == 1
    assert "dropping 11 bytes of batches from node 'b'" in caplog.text
    stand.take((append(1), []))
    assert len(stand.ear.got) == 1
    stand.budget.give_back(BUDGET_BYTES - 10)


async def test_large_envelope_is_counted_until_delivery(stand: Stand) -> None:
    held: list[int] = []
    stand.received = lambda peer, message, batches: held.append(stand.budget.used_bytes)
    envelope = pb.Envelope(append_batch=pb.AppendBatches(entries=[append(1)]))
    assert stand.inbox.admit(5000)
    stand.inbox.take(Frame(envelope, memoryview(b"")))
    assert (held, stand.budget.used_bytes) == ([5000], 0)
    stand.received = stand.ear
    stand.take((append(1), [BIG]))  # the frame after it is counted while it waits
    before = stand.budget.used_bytes
    assert stand.inbox.admit(5000)
    stand.inbox.take(Frame(envelope, memoryview(b"")))
    assert stand.budget.used_bytes == before + 5000
    await stand.ear.heard(2)
    assert stand.budget.used_bytes == 0


async def test_closed_inbox_delivers_and_holds_nothing(stand: Stand) -> None:
    stand.take((append(1), [BIG]))
    stand.take((append(2), [batch(b"x")]))
    assert stand.inbox.admit(1000)  # begun to arrive
    stand.inbox.close()
    other = stand.make(ear := Ear())
    assert other.admit(len(BIG))
    entry = append(9)
    entry.length = len(BIG)
    other.take(Frame(pb.Envelope(append_batch=pb.AppendBatches(entries=[entry])), memoryview(BIG)))
    await ear.heard(1)  # by then the worker has had the first one's, too
    assert not stand.ear.got
    assert stand.budget.used_bytes == 0


async def test_exception_in_one_message_does_not_affect_others(stand: Stand) -> None:
    heard: list[int] = []

    def broken(_: str, message: LinkMessage, __: Sequence[Batch]) -> None:
        heard.append(message.partition)
        if message.partition == 1:
            raise RuntimeError("a bug")

    stand.received = broken
    stand.take(*[(append(0, partition), []) for partition in range(3)])
    assert heard == [0, 1, 2]
