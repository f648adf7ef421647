"""`put` of the blocking client: the handoff of batches from threads to the event loop."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.clients.counted import Counted
from tests.clients.fake_node import FakeNode, Refuse
from tests.clients.sync.test_client import node  # noqa: F401 - a fixture

from tidelog import Receipt, TidelogError
from tidelog.errors import (
    BufferFullError,
    ClosedError,
    CorruptBatchError,
    ForkedError,
    NotBegunError,
    SerializationError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from tidelog.produce.thread_handoff import RESERVATION_S
from tidelog.sync import Client, Producer
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partition_for_key


class Held:
    """Blocks the loop of a client in a callback until `resume`."""

    def __init__(self, producer: Producer) -> None:
        self._go, held = threading.Event(), threading.Event()

        def hold(*_: object) -> None:
            held.set()
            assert self._go.wait(20)

        producer.put(b"held", on_delivery=hold)
        assert held.wait(20)

    def resume(self) -> None:
        self._go.set()


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:  # noqa: F811 - a fixture
    with Client(f"127.0.0.1:{node.port}") as client:
        yield client


def test_records_of_a_loop_are_handed_over_as_one_batch(node: FakeNode, client: Client) -> None:  # noqa: F811
    with client.producer("t") as producer:
        loop = Held(producer)
        receipts = [producer.put(b"%d" % number) for number in range(1_000)]
        assert not receipts[0].done()
        loop.resume()
        assert [receipt.result(10).offset for receipt in receipts] == list(range(1, 1_001))
        assert receipts[0].done()
    assert [[entry[2] for entry in publish] for publish in node.publishes] == [[1], [1_000]]


def test_threads_keep_their_own_order_and_the_order_of_calls(node: FakeNode, client: Client) -> None:  # noqa: F811
    with client.producer("wide") as producer:

        def work(name: int) -> None:
            for number in range(0, 400, 4):
                producer.put(b"%d %d" % (name, number), key=b"%d" % name)
                producer.put(b"%d %d" % (name, number + 1), key=b"%d" % name, tag="x")
                if number % 40 == 0:
                    producer.enqueue(b"%d %d" % (name, number + 2), key=b"%d" % name)
                    producer.send_many([b"%d %d" % (name, number + 3)], keys=[b"%d" % name])

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(4):
        values = node.partition("wide", partition_for_key(b"%d" % name, 4)).values()
        mine = [int((value or b"").split()[1]) for value in values if (value or b"").startswith(b"%d " % name)]
        assert mine == [number for number in range(400) if number % 4 < 2 or number % 40 in {2, 3}]


def test_unacceptable_record_is_refused_at_the_call(node: FakeNode, client: Client) -> None:  # noqa: F811
    unbegun = client.producer("t")
    with pytest.raises(NotBegunError, match="begin"):
        unbegun.put(b"v")
    unbegun.begin()
    unbegun.put(b"v")
    for arguments, error in (
        ({"value": "text"}, TypeError),
        ({"value": b"v", "key": 1}, TypeError),
        ({"value": b"v", "on_delivery": 1}, TypeError),
        ({"value": b"v", "partition": 1}, UnknownPartitionError),
    ):
        given: dict[str, Any] = arguments
        with pytest.raises(error):
            unbegun.put(**given)
    unbegun.close()
    with pytest.raises(ClosedError):
        unbegun.put(b"v")
    with client.producer("t", value_serializer="json") as producer:
        producer.put({"a": 1})
        with pytest.raises(SerializationError):
            producer.put(b"bytes")
    with pytest.raises(UnknownTopicError), client.producer("nowhere"):
        pass
    assert node.values("t") == [b"v", b'{"a":1}']


def test_full_buffer_refuses_until_memory_is_free(node: FakeNode, client: Client) -> None:  # noqa: F811
    with client.producer("t", buffer_bytes=100_000) as producer:
        refused = 0
        for number in range(5_000):
            while True:
                try:
                    producer.put(b"%05d" % number * 20)
                    break
                except BufferFullError:
                    refused += 1
                    producer.ready()
        assert refused > 0
    assert node.values("t") == [b"%05d" % number * 20 for number in range(5_000)]


def test_memory_stays_reserved_for_a_thread_that_waited(node: FakeNode, client: Client) -> None:  # noqa: F811
    refused: list[int] = []
    with client.producer("t", buffer_bytes=20_000) as producer:

        def work(size_bytes: int) -> None:
            for _ in range(300):
                try:
                    producer.put(b"x" * size_bytes)
                except BufferFullError:
                    producer.ready()
                    producer.put(b"x" * size_bytes)
                    refused.append(size_bytes)

        threads = [threading.Thread(target=work, args=(size_bytes,)) for size_bytes in (10, 400, 2_000, 9_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(refused) >= {2_000, 9_000}
    assert len(node.values("t")) == 1_200


def test_reservation_of_a_thread_expires_and_is_not_buffered(node: FakeNode) -> None:  # noqa: F811
    counted = Counted()
    metered = Client(f"127.0.0.1:{node.port}", metrics=counted)
    with metered as client, client.producer("t", buffer_bytes=1_199) as producer:
        loop = Held(producer)
        with pytest.raises(BufferFullError):
            producer.put(b"x" * 1_004)
        loop.resume()
        for _ in range(3):  # a thread has at most one reservation
            producer.ready()
        producer.send(b"y")
        assert sum(change for _, change in counted.of("buffered") if isinstance(change, int)) == 0
        time.sleep(RESERVATION_S + 0.2)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(producer.put, b"x" * 1_004).result().result(10).offset == 2


def test_waiting_batches_count_against_the_buffer(client: Client) -> None:
    producer = client.producer("t", buffer_bytes=10_000)
    producer.begin()
    loop = Held(producer)
    taken = 0
    with contextlib.suppress(BufferFullError):
        while taken < 20_000:
            producer.put(b"x" * 100)
            taken += 196
    loop.resume()
    assert 9_700 <= taken <= 9_900, "the first record uses memory until its callback was called"
    producer.ready()
    producer.put(b"x" * 100)
    producer.close()


def test_callbacks_run_in_the_loop_thread_and_may_put(node: FakeNode, client: Client) -> None:  # noqa: F811
    told: list[tuple[Receipt | None, TidelogError | None, str]] = []
    with client.producer("t") as producer:
        node.script.append(Refuse(pb.CORRUPT_BATCH))

        def again(receipt: Receipt | None, error: TidelogError | None) -> None:
            told.append((receipt, error, threading.current_thread().name))
            if error is not None:
                producer.put(b"again", on_delivery=again)

        producer.put(b"v", on_delivery=again)
        producer.flush()
        producer.flush()
    assert [type(error) for _, error, _ in told] == [CorruptBatchError, type(None)]
    assert told[1][0] == (0, 0, 7)
    assert {name for *_, name in told} == {"tidelog tidelog-python"}
    assert node.values("t") == [b"again"]


def test_callback_that_exits_does_not_block_others(node: FakeNode, client: Client) -> None:  # noqa: F811
    told: list[TidelogError | None] = []
    with client.producer("t") as producer:
        loop = Held(producer)
        for callback in (lambda *_: sys.exit(3), lambda _receipt, error: told.append(error)):
            producer.put(b"v", on_delivery=callback)
        loop.resume()
        producer.flush()
        assert told == [None]
    assert len(node.values("t")) == 3


def test_callback_may_not_close_its_client(client: Client) -> None:
    told: list[str] = []

    def close(*_: object) -> None:
        for ends in (client.close, client.abort):
            with pytest.raises(UsageError) as caught:
                ends()
            told.append(str(caught.value))

    with client.producer("t") as producer:
        producer.put(b"a", on_delivery=close)
        producer.flush()
        assert len(told) == 2
        assert producer.send(b"b").offset == 1


def test_forked_child_appends_nothing(node: FakeNode, client: Client) -> None:  # noqa: F811
    with client.producer("t") as producer:
        loop = Held(producer)
        producer.put(b"mine")
        child = os.fork()
        if child == 0:
            answer = "false"
            with contextlib.suppress(Exception):
                try:
                    producer.put(b"the child's")
                except ForkedError:
                    answer = "true"
            os.execvp(answer, [answer])
        _, status = os.waitpid(child, 0)
        loop.resume()
        assert os.waitstatus_to_exitcode(status) == 0
        producer.put(b"mine, too")
    assert node.values("t") == [b"held", b"mine", b"mine, too"]


def test_partitioner_may_call_put(node: FakeNode, client: Client) -> None:  # noqa: F811
    inner = client.producer("t")
    inner.begin()

    def partitioner(_key: bytes | None, _partitions: int) -> int:
        inner.put(b"seen")
        return 3

    with client.producer("wide", partitioner=partitioner) as producer:
        assert producer.put(b"v").result(10).partition == 3
    inner.close()
    assert node.values("t") == [b"seen"]


def test_batch_handed_over_after_abort_fails(client: Client) -> None:
    producer = client.producer("t")
    producer.begin()
    loop = Held(producer)
    aborting = threading.Thread(target=producer.abort)
    aborting.start()
    pending = producer.put(b"v")
    loop.resume()
    aborting.join()
    with pytest.raises(ClosedError):
        pending.result(10)


def test_abort_calls_every_callback(node: FakeNode) -> None:  # noqa: F811
    told: list[TidelogError | None] = []
    client = Client(f"127.0.0.1:{node.port}")
    producer = client.producer("t")
    producer.begin()
    loop = Held(producer)
    for _ in range(2_000):
        producer.put(b"v", on_delivery=lambda _receipt, error: told.append(error))
    threading.Timer(0.1, loop.resume).start()
    client.abort()
    assert len(told) == 2_000


def test_record_put_during_close_is_settled(node: FakeNode) -> None:  # noqa: F811
    for number in range(20):
        told: list[TidelogError | None] = []
        taken: list[None] = []
        client = Client(f"127.0.0.1:{node.port}")
        producer = client.producer("t")
        producer.begin()

        def work(producer: Producer, told: list[TidelogError | None], taken: list[None]) -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    with contextlib.suppress(BufferFullError):
                        producer.put(b"v", on_delivery=lambda _receipt, error: told.append(error))
                        taken.append(None)

        threads = [threading.Thread(target=work, args=(producer, told, taken)) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.005 * (number % 4))
        client.abort()
        for thread in threads:
            thread.join()
        assert len(told) == len(taken)
