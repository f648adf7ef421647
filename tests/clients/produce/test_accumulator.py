"""The record accumulator: when it drains or closes its open batch. test_put.py tests the results."""

from __future__ import annotations

import asyncio
import os

import pytest

from tidelog.errors import ClosedError
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.batches import Chunk, ListChunk
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.open_batch import OpenBatch
from tidelog.produce.partition_queue import PartitionQueue, QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.record_preparation import PreparedRecord, RecordPreparation

PLAIN = ProducerOptions()


def record(value: bytes = b"x" * 104, *, key: bytes | None = None, timestamp_us: int | None = None) -> PreparedRecord:
    """Return a record; by default it takes 200 bytes."""
    return RecordPreparation(PLAIN).prepare(value, key, None, None, None, timestamp_us)


class FakeSender:
    def __init__(self) -> None:
        self.awake: list[int] = []
        self.soon = 0
        self.served = 0

    def wake(self, queue: PartitionQueue) -> None:
        self.awake.append(queue.partition)

    def wake_soon(self) -> None:
        self.soon += 1

    def serve_now(self) -> None:
        self.served += 1


class Scene:
    def __init__(self, *, buffer_bytes: int = 10_000, batch_bytes: int = 1_000, shared: bool = True) -> None:
        options = QueueOptions(producer_id=7, batch_bytes=batch_bytes)
        self.settled: list[Chunk] = []
        self.memory = BufferMemory(buffer_bytes)
        self.queues = PartitionQueues(options, self.settled.append)
        self.sender = FakeSender()
        self.accumulator = RecordAccumulator(
            self.memory, self.queues, options, delivery_timeout_s=5.0, shared=shared, settled=self.settled.append
        )
        self.accumulator.bind(self.sender, asyncio.get_running_loop())  # type: ignore[arg-type]  # only these members are used

    def counts(self) -> list[int]:
        return [chunk.count for chunk in self.queues.unsettled()]


async def test_open_batch_wakes_loop_once_and_reserves_memory_for_a_batch() -> None:
    scene = Scene()
    for _ in range(5):
        assert scene.accumulator.accept(record(), 1) is not None
    assert (scene.sender.soon, scene.sender.served, scene.memory.used_bytes) == (1, 0, 1_000)
    assert scene.accumulator.directly_appendable.remaining_bytes == 0
    assert scene.counts() == []


async def test_full_batch_is_sent_at_once_and_releases_unused_memory() -> None:
    scene = Scene()
    for _ in range(6):
        scene.accumulator.accept(record(), 1)
    (chunk,) = scene.queues.unsettled()
    assert isinstance(chunk, ListChunk)
    assert (chunk.count, chunk.size_bytes, chunk.full) == (5, 1_000, True)
    assert scene.sender.served == 1
    scene.accumulator.drain()
    assert scene.counts() == [5, 1]
    assert scene.memory.used_bytes == 1_200


async def test_records_with_timestamps_have_their_own_batch_without_unchecked_appends() -> None:
    scene = Scene()
    scene.accumulator.accept(record(), 1)
    scene.accumulator.accept(record(timestamp_us=1), 1)
    assert scene.accumulator.directly_appendable.remaining_bytes < 0
    scene.accumulator.accept(record(timestamp_us=2), 1)
    scene.accumulator.accept(record(), 1)
    assert scene.counts() == [1, 2]


async def test_batch_is_drained_only_if_a_queue_could_send_it() -> None:
    scene = Scene()
    scene.accumulator.accept(record(), 1)
    scene.accumulator.drain_if_sendable()
    batch = scene.queues.queue(0).next_to_send(0.0, 0)
    assert batch is not None
    scene.accumulator.accept(record(), 1)
    scene.accumulator.drain_if_sendable()
    assert scene.accumulator.batch is not None, "the only queue waits for an answer"
    scene.queues.queue(0).acknowledged(batch, 0, 0)
    scene.accumulator.drain_if_sendable()
    assert scene.accumulator.batch is None


async def test_unused_partition_counts_as_free() -> None:
    scene = Scene()
    for _ in range(2):
        scene.accumulator.accept(record(), 2)
        scene.accumulator.drain_if_sendable()
        queue = scene.queues.queue(scene.sender.awake[-1])
        assert queue.next_to_send(0.0, 0) is not None
    assert sorted(scene.sender.awake) == [0, 1]
    scene.accumulator.accept(record(), 2)
    scene.accumulator.drain_if_sendable()
    assert scene.accumulator.batch is not None


async def test_append_does_not_overtake_waiting_call() -> None:
    scene = Scene()
    scene.accumulator.accept(record(), 1)
    scene.accumulator.close_to_direct()
    assert (scene.accumulator.directly_appendable.remaining_bytes, scene.memory.used_bytes) == (-1, 200)
    await scene.memory.acquire_turn()
    assert scene.accumulator.accept(record(), 1) is None
    await scene.memory.reserve(200)
    assert scene.accumulator.accept(record(), 1, memory_reserved=True) is not None
    assert scene.accumulator.directly_appendable.remaining_bytes < 0
    scene.memory.release_turn()
    assert scene.accumulator.accept(record(), 1) is not None
    assert scene.accumulator.directly_appendable.remaining_bytes == 400
    scene.accumulator.drain()
    assert scene.counts() == [3]


async def test_unchecked_appends_are_off_without_sharing() -> None:
    scene = Scene(shared=False)
    for _ in range(2):
        assert scene.accumulator.accept(record(), 1) is not None
        assert scene.accumulator.directly_appendable.remaining_bytes < 0
    assert scene.memory.used_bytes == 400


async def test_split_columns_reserve_their_own_size() -> None:
    scene = Scene(buffer_bytes=10**6, batch_bytes=10**6)
    for number in range(1_000):
        scene.accumulator.accept(record(key=b"%d" % number), 4)
    scene.accumulator.drain()
    assert sum(scene.counts()) == 1_000
    sizes = [chunk.size_bytes for chunk in scene.queues.unsettled()]
    assert scene.memory.used_bytes == sum(sizes) < 150_000
    assert sorted(scene.sender.awake) == [0, 1, 2, 3]


async def test_batch_of_other_thread_follows_open_batch() -> None:
    scene = Scene()
    scene.accumulator.accept(record(), 1)
    other = OpenBatch(deadline=0.0, timestamped=False)
    other.reserve(500)
    other.remaining_bytes -= 200
    other.add(b"other", None, None, None, None, None)
    other.close_to_direct()
    scene.accumulator.add_batch(other, 1)
    assert [
        chunk.to_columns().column("value")[0].as_py()[:5]
        for chunk in scene.queues.unsettled()
        if isinstance(chunk, ListChunk)
    ] == [b"xxxxx", b"other"]
    assert scene.memory.used_bytes == 400
    assert other.deadline > asyncio.get_running_loop().time()


async def test_fail_applies_to_open_batch_and_later_batches() -> None:
    scene = Scene()
    found = scene.accumulator.accept(record(), 1)
    assert found is not None
    scene.accumulator.fail(ClosedError("closed"))
    delivery = found[0].delivery
    assert delivery is not None
    with pytest.raises(ClosedError):
        await delivery
    late = OpenBatch(deadline=0.0, timestamped=False)
    late.add(b"late", None, None, None, None, None)
    scene.accumulator.add_batch(late, 1)
    assert late.delivery is not None
    assert isinstance(late.delivery.error, ClosedError)
    assert len(scene.settled) == 2


async def test_unchecked_appends_are_off_after_fork() -> None:
    scene = Scene()
    for _ in range(2):
        scene.accumulator.accept(record(), 1)
    assert scene.accumulator.directly_appendable.remaining_bytes > 0
    child = os.fork()
    if child == 0:
        answer = "true" if scene.accumulator.directly_appendable.remaining_bytes < 0 else "false"
        os.execvp(answer, [answer])
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert scene.accumulator.directly_appendable.remaining_bytes > 0
