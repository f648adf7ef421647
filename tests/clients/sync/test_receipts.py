from __future__ import annotations

import inspect

import pytest
from tests.clients.fake_node import FakeNode, Refuse
from tests.clients.sync.test_client import node  # noqa: F401 - a fixture

from tidelog.base.loop_thread import LoopThread
from tidelog.errors import ClosedError, CorruptBatchError
from tidelog.produce.open_batch import OpenBatch
from tidelog.sync import Client
from tidelog.sync.receipts import PendingReceipt, PendingReceipts
from tidelog_proto import broker_pb2 as pb


def test_both_are_waited_for_in_the_same_way() -> None:
    one, many = (set(dict(inspect.getmembers(cls, inspect.isfunction))) for cls in (PendingReceipt, PendingReceipts))
    assert one == many == {"__init__", "done", "result"}


def test_what_is_known_is_told_when_the_client_is_closed(node: FakeNode) -> None:  # noqa: F811
    with Client(f"127.0.0.1:{node.port}") as client, client.producer("t") as producer:
        one, many = producer.put(b"a"), producer.enqueue_many([b"b", b"c"])
        producer.flush()
        node.script.append(Refuse(pb.CORRUPT_BATCH))
        refused = producer.put(b"d")
        with pytest.raises(CorruptBatchError):
            refused.result(10)
    assert one.done()
    assert one.result().offset == 0
    assert [receipt.offset for receipt in many.result()] == [1, 2]
    with pytest.raises(CorruptBatchError):
        refused.result()


def test_what_can_no_longer_be_known_is_not_said_to_be_unwritten() -> None:
    thread = LoopThread("test")
    thread.stop()
    pending = PendingReceipt(thread, OpenBatch(deadline=0.0, timestamped=False), 0)
    with pytest.raises(ClosedError) as caught:
        pending.result()
    assert not caught.value.definite
