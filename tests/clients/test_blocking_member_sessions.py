"""A blocking member whose process is held up for longer than its session: others may read what it read.

The client's loop runs in a thread of its own, so the thread that reads may be the first that wakes: it is to look by
itself, before the loop has noticed anything.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.clients.fake_node import FakeNode
from tests.clients.test_consumer import T0
from tests.clients.test_member_sessions import RECORDS, SESSION_S, Coordinator, Told
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
    """Hold the client's loop up, and this thread for a whole session; the loop runs on soon after the body began."""
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
def test_nothing_is_handed_out_that_may_be_anothers(client: Client, read: Callable[[Consumer], int]) -> None:
    told = Told()
    with client.consumer("t", group=told.group()) as consumer:
        assert next(consumer).offset == 0
        with stopped(client):
            assert read(consumer) == 0, "it begins anew, where the group has committed"
        assert [what for what, _ in told.events] == ["assigned", "lost", "assigned"]


def test_a_loop_that_goes_on_looks_before_each_record(client: Client) -> None:
    told = Told()
    with client.consumer("t", group=told.group()) as consumer:
        read = by_one_loop(consumer)
        assert [read(consumer) for _ in range(3)] == [0, 1, 2]
        with stopped(client):
            assert read(consumer) == 0
        assert told.events[1] == ("lost", frozenset([T0]))


def test_what_a_poll_has_taken_is_not_returned_when_the_session_ends_in_the_middle(client: Client) -> None:
    stops = [b"2"]

    def held_up(content: bytes) -> bytes:
        if content in stops:
            stops.remove(content)
            with stopped(client):
                pass
        return content

    with client.consumer("t", group=Told().group(), value_deserializer=held_up) as consumer:
        assert consumer.poll(5, timeout_s=WAIT_S) == []
        assert [record.offset for record in consumer.poll(5, timeout_s=WAIT_S)] == [0, 1, 2, 3, 4]


def test_a_session_that_lasts_costs_no_record(client: Client, node: FakeNode) -> None:
    coordinator = node.coordinate
    goes_on = pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    node.coordinate = lambda asked: coordinator(asked) or goes_on
    with client.consumer("t", group=Told().group()) as consumer:
        records, seen, ends_at = iter(consumer), [0], time.monotonic() + 2.5 * SESSION_S
        assert next(records).offset == 0
        while time.monotonic() < ends_at:
            time.sleep(SESSION_S / 10)
            seen.append(next(records).offset)
        assert seen == list(range(len(seen)))
