from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from tests.clients.fake_node import FakeNode
from tests.clients.threaded_node import threaded_fake_node

from tidelog import TopicPartition
from tidelog.errors import InvalidRequestError, RecordError
from tidelog.sync import Client, Consumer


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with threaded_fake_node() as node:
        yield node


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(f"127.0.0.1:{node.port}") as client:
        yield client


def test_records_batches_commit_and_seek_work(client: Client) -> None:
    values = [b"%d" % number for number in range(10)]
    client.producer("t").send_many(values[:6])
    client.producer("t").send_many(values[6:])
    with client.consumer("t", group="g", partitions="all") as consumer:
        assert [next(consumer).value for _ in range(4)] == values[:4]
        assert consumer.position() == {TopicPartition("t", 0): 4}
        assert consumer.commit()[TopicPartition("t", 0)].next_offset == 4
        batches = consumer.batches()
        assert next(batches).batch.values() == values[4:6]
        assert next(batches).batch.values() == values[6:]
        consumer.seek(0, 2)
        assert next(consumer).value == b"2"
    assert [each.next_offset for each in client.committed("g", "t")] == [4]
    with client.consumer("t") as other, pytest.raises(InvalidRequestError):
        other.commit()


def test_background_commit_is_stored(client: Client) -> None:
    client.producer("t").send_many([b"0", b"1", b"2"])
    where, told = TopicPartition("t", 0), list[object]()
    with client.consumer("t", group="g", partitions="all") as consumer:
        next(consumer)
        consumer.commit_soon(on_commit=lambda held, error: told.append((held[where].next_offset, error)))
        next(consumer)
        with pytest.raises(InvalidRequestError):
            consumer.commit_soon({where: -1})
    assert told == [(1, None)]
    assert [each.next_offset for each in client.committed("g", "t")] == [1]


def test_poll_pause_and_assignment_changes_work(node: FakeNode, client: Client) -> None:
    client.producer("t").send_many([b"%d" % number for number in range(6)])
    client.producer("wide").send_many([b"w0", b"w1"], partition=2)
    first, second = TopicPartition("t", 0), TopicPartition("wide", 2)
    with client.consumer(group="g") as consumer:
        assert consumer.poll(timeout_s=0.05) == []
        consumer.assign({first: 2})
        assert [record.value for record in consumer.poll(1)] == [b"2"]
        consumer.pause(first)
        assert consumer.paused() == {first}
        assert consumer.poll(timeout_s=0.05) == []
        consumer.assign({second: None})
        assert consumer.assignment() == {first, second}
        assert [next(consumer).value for _ in range(2)] == [b"w0", b"w1"]
        consumer.unassign([second])
        consumer.resume(first)
        assert [record.value for record in consumer.poll()] == [b"3", b"4", b"5"]
        assert consumer.commit()[first].next_offset == 6
        consumer.seek(first, "earliest")
        assert [record.value for _, record in zip(range(3), consumer, strict=False)] == [b"0", b"1", b"2"]
        with pytest.raises(InvalidRequestError):
            consumer.poll(0)
        assert not consumer.seek_to_key(first, b"nobody")


def test_values_are_decoded_in_the_callers_thread(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    threads: set[int] = set()

    def number(content: bytes) -> int:
        threads.add(threading.get_ident())
        return int(content)

    client.producer("t").send_many([b"0", b"one", b"2"])
    with client.consumer("t", value_deserializer=number) as consumer:
        values = []
        with pytest.raises(RecordError):
            values += [record.value for record in consumer]
        consumer.seek(0, 2)
        assert next(consumer).value == 2
    assert threads == {threading.get_ident()}
    with client.consumer("t", value_deserializer=number, on_undecodable="skip") as consumer:
        assert [next(consumer).value, next(consumer).value, consumer.skipped] == [0, 2, 1]
    with client.consumer("t", value_deserializer=number, dead_letter="dead") as consumer:
        assert [next(consumer).value for _ in range(2)] == [0, 2]
    assert node.values("dead") == [b"one"]


def test_ctrl_c_interrupts_a_wait_without_loss(client: Client) -> None:
    main = threading.get_ident()
    with client.consumer("t") as consumer:
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        timer.join()
        client.producer("t").send(b"after")
        assert next(consumer).value == b"after"


def be_interrupted(consumer: Consumer) -> None:
    """Wait for a batch until Ctrl-C."""
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        consumer.next_batch()
    timer.join()


def next_offset(consumer: Consumer) -> int:
    batch = consumer.next_batch()
    assert batch is not None
    return batch.batch.base_offset


def test_batch_of_interrupted_wait_is_next_unless_sought(
    client: Client,
) -> None:
    producer = client.producer("t")
    with client.consumer("t") as consumer:
        be_interrupted(consumer)
        producer.send(b"0")
        assert next_offset(consumer) == 0
        be_interrupted(consumer)
        producer.send(b"1")
        consumer.seek(0, 0)
        assert [next_offset(consumer) for _ in range(2)] == [0, 1]


def test_batch_of_interrupted_wait_is_held_while_its_partition_is_paused(client: Client) -> None:
    producer, zero = client.producer("t"), TopicPartition("t", 0)
    with client.consumer("t") as consumer:
        be_interrupted(consumer)
        producer.send(b"0")
        time.sleep(0.3)  # the loop has received it by now
        consumer.pause(zero)
        be_interrupted(consumer)
        be_interrupted(consumer)
        producer.send(b"1")
        consumer.resume(zero)
        assert [next_offset(consumer) for _ in range(2)] == [0, 1]
        be_interrupted(consumer)
        producer.send(b"2")
        time.sleep(0.3)
        consumer.pause(zero)
        be_interrupted(consumer)
        consumer.seek(0, 1)
        consumer.resume(zero)
        assert [next_offset(consumer) for _ in range(2)] == [1, 2]


def test_ctrl_c_in_a_deserializer_loses_no_record(client: Client) -> None:
    interrupts = [b"1"]

    def number(content: bytes) -> int:
        if content in interrupts:
            interrupts.remove(content)
            raise KeyboardInterrupt
        return int(content)

    client.producer("t").send_many([b"0", b"1", b"2"])
    with client.consumer("t", value_deserializer=number) as consumer:
        assert next(consumer).value == 0
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert consumer.position() == {TopicPartition("t", 0): 1}
        assert [next(consumer).value for _ in range(2)] == [1, 2]


def test_ctrl_c_in_a_poll_loses_no_taken_record(client: Client) -> None:
    interrupts = [b"2", b"4", b"5"]

    def number(content: bytes) -> int:
        if content in interrupts:
            interrupts.remove(content)
            raise KeyboardInterrupt
        return int(content)

    client.producer("t").send_many([b"%d" % number for number in range(8)])

    def interrupted(consumer: Consumer) -> None:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()

    with client.consumer("t", value_deserializer=number) as consumer:
        interrupted(consumer)
        assert [record.value for record in consumer.poll(1)] == [0]
        interrupted(consumer)
        assert [record.value for record in consumer.poll(3)] == [1, 2, 3]
        interrupted(consumer)
        consumer.seek(0, 6)
        assert [record.value for record in consumer.poll()] == [6, 7]


def test_unassign_in_another_thread_stops_delivery(client: Client) -> None:
    client.producer("t").send_many([b"%d" % number for number in range(5000)])
    first = TopicPartition("t", 0)
    seen: list[int] = []
    with client.consumer("t") as consumer:

        def read() -> None:
            for record in consumer:
                seen.append(record.offset)
                time.sleep(0.0005)

        thread = threading.Thread(target=read)
        thread.start()
        while len(seen) < 20:
            time.sleep(0.001)
        consumer.unassign([first])
        at = len(seen)
        time.sleep(0.05)
        assert len(seen) <= at + 1, "except the record in flight"
        assert consumer.position() == {}
        consumer.assign({first: seen[-1] + 1})
        count = len(seen) + 20
        while len(seen) < count:
            time.sleep(0.001)
        consumer.close()
        thread.join(10)
    assert seen == list(range(len(seen)))


def test_poll_observes_its_timeout_while_skipping(client: Client) -> None:
    def slowly(content: bytes) -> int:
        time.sleep(0.002)
        return int(content)

    client.producer("t").send_many([*[b"no number"] * 1500, b"1"])
    with client.consumer("t", value_deserializer=slowly, on_undecodable="skip") as consumer:
        assert consumer.poll(timeout_s=0.1) == []
        assert consumer.skipped < 750, "each record takes at least 2 ms: 1.5 s"
        assert consumer.position() == {TopicPartition("t", 0): consumer.skipped}
        assert [record.value for record in consumer.poll(timeout_s=20)] == [1]
        assert consumer.skipped == 1500
