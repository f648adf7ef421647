"""A blocking member whose process is suspended for longer than its session: other members may read its partitions.

The client's loop runs in a separate thread, so the reading thread may wake first; it must check the session itself.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.clients.consume.test_consumer import T0
from tests.clients.fake_node import FakeNode
from tests.clients.test_member_sessions import RECORDS, SESSION_S, Callbacks, Coordinator
from tests.clients.threaded_node import threaded_fake_node

from tidelog.sync import Client, Consumer
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import OFFSETS_TOPIC

WAIT_S = 10.0


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with threaded_fake_node() as node:
        node.add_topic(OFFSETS_TOPIC)
        coordinator = Coordinator(node)
        coordinator.takes_in = True
        node.coordinate = coordinator.answer
        yield node


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(f"127.0.0.1:{node.port}") as client:
        producer = client.producer("t")
        for first in range(0, RECORDS, RECORDS // 4):
            producer.send_many([b"%d" % number for number in range(first, first + RECORDS // 4)])
        yield client


@contextlib.contextmanager
def stopped(client: Client) -> Iterator[None]:
    """Block the client's loop, and this thread for a whole session; the loop continues shortly after the body began."""
    held, goes_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        held.set()
        goes_on.wait(WAIT_S)

    producer = client.producer("wide")
    producer.begin()
    producer.put(b"x", partition=0, on_delivery=hold)
    assert held.wait(WAIT_S)
    time.sleep(SESSION_S)
    waker = threading.Timer(0.1, goes_on.set)
    waker.start()
    try:
        yield
    finally:
        waker.join()


def by_iterating(consumer: Consumer) -> int:
    return next(consumer).offset


def by_one_loop(consumer: Consumer) -> Callable[[Consumer], int]:
    records = iter(consumer)
    return lambda _: next(records).offset


def by_batches(consumer: Consumer) -> int:
    return next(consumer.batches()).batch.base_offset


@pytest.mark.parametrize("read", [by_iterating, by_batches])
def test_nothing_is_delivered_after_session_expiry(client: Client, read: Callable[[Consumer], int]) -> None:
    told = Callbacks()
    with client.consumer("t", group=told.group()) as consumer:
        assert next(consumer).offset == 0
        with stopped(client):
            assert read(consumer) == 0, "it begins again at the committed position"
        assert [what for what, _ in told.events] == ["assigned", "lost", "assigned"]


def test_iteration_checks_the_session_before_each_record(client: Client) -> None:
    told = Callbacks()
    with client.consumer("t", group=told.group()) as consumer:
        read = by_one_loop(consumer)
        assert [read(consumer) for _ in range(3)] == [0, 1, 2]
        with stopped(client):
            assert read(consumer) == 0
        assert told.events[1] == ("lost", frozenset([T0]))


def test_poll_returns_nothing_when_the_session_expires_during_it(client: Client) -> None:
    stops = [b"2"]

    def held_up(content: bytes) -> bytes:
        if content in stops:
            stops.remove(content)
            with stopped(client):
                pass
        return content

    with client.consumer("t", group=Callbacks().group(), value_deserializer=held_up) as consumer:
        assert consumer.poll(5, timeout_s=WAIT_S) == []
        assert [record.offset for record in consumer.poll(5, timeout_s=WAIT_S)] == [0, 1, 2, 3, 4]


def test_valid_session_loses_no_record(client: Client, node: FakeNode) -> None:
    coordinator = node.coordinate
    goes_on = pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    node.coordinate = lambda asked: coordinator(asked) or goes_on
    with client.consumer("t", group=Callbacks().group()) as consumer:
        records, seen, ends_at = iter(consumer), [0], time.monotonic() + 2.5 * SESSION_S
        assert next(records).offset == 0
        while time.monotonic() < ends_at:
            time.sleep(SESSION_S / 10)
            seen.append(next(records).offset)
        assert seen == list(range(len(seen)))


def by_next_batch(consumer: Consumer) -> int:
    batch = consumer.next_batch()
    assert batch is not None
    return batch.batch.base_offset


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Interrupt the main thread like Ctrl-C, repeatedly until it has left the body."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def take_and_be_interrupted(client: Client, consumer: Consumer) -> None:
    """Interrupt a wait for a batch and let a batch arrive, which the loop has then taken for the next caller."""
    batches = RECORDS // (RECORDS // 4)
    assert [by_next_batch(consumer) for _ in range(batches)] == list(range(0, RECORDS, RECORDS // 4))
    with interrupted():
        consumer.next_batch()
    client.producer("t").send(b"more")


def awaited(told: Callbacks, what: list[str]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while [event for event, _ in told.events] != what and time.monotonic() < deadline:
        time.sleep(0.01)
    return [event for event, _ in told.events] == what


def test_batch_received_before_session_expiry_is_not_delivered(client: Client) -> None:
    told = Callbacks()
    with client.consumer("t", group=told.group()) as consumer:
        take_and_be_interrupted(client, consumer)
        with stopped(client):
            assert by_next_batch(consumer) == 0, "it begins again at the committed position"
        assert [what for what, _ in told.events] == ["assigned", "lost", "assigned"]


def test_batch_of_an_earlier_membership_is_not_delivered(client: Client) -> None:
    told = Callbacks()
    with client.consumer("t", group=told.group()) as consumer:
        take_and_be_interrupted(client, consumer)
        assert awaited(told, ["assigned", "lost", "assigned"])
        assert by_next_batch(consumer) == 0, "it begins again at the committed position"


def test_poll_returns_records_of_a_partition_revoked_during_it(client: Client, node: FakeNode) -> None:
    coordinator = node.coordinate
    gives = threading.Event()

    def extend_and_take_away(asked: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply:
        if not gives.is_set() or asked.leave:
            return coordinator(asked) or pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
        return pb.GroupHeartbeatReply(revision=2, generation=2)

    def held_up(content: bytes) -> bytes:
        if content == b"2" and not gives.is_set():
            until = time.monotonic() + 1.2 * SESSION_S
            gives.set()
            while consumer.assignment() or time.monotonic() < until:
                time.sleep(0.01)
        return content

    node.coordinate = extend_and_take_away
    told = Callbacks()
    with client.consumer("t", group=told.group(), value_deserializer=held_up) as consumer:
        records = consumer.poll(5, timeout_s=WAIT_S)
        assert [what for what, _ in told.events] == ["assigned"], "revoked when the application asks for more"
        assert [record.offset for record in records] == [0, 1, 2]
        assert consumer.poll(5, timeout_s=0.2) == []
        assert awaited(told, ["assigned", "revoked"])


def test_poll_does_not_return_records_lost_during_it(client: Client, node: FakeNode) -> None:
    coordinator = node.coordinate
    node.coordinate = lambda asked: (
        coordinator(asked) or pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    )
    told, held = Callbacks(), [b"2"]

    def held_up(content: bytes) -> bytes:
        if content in held:
            held.remove(content)
            assert awaited(told, ["assigned", "lost"]), "the poll timeout gives the partitions to others"
        return content

    group = replace(told.group(), session_timeout_s=60.0, poll_timeout_s=0.5)
    with client.consumer("t", group=group, value_deserializer=held_up) as consumer:
        assert consumer.poll(5, timeout_s=WAIT_S) == []
        assert [record.offset for record in consumer.poll(5, timeout_s=WAIT_S)] == [0, 1, 2, 3, 4]
