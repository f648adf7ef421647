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


def test_result_waits_for_both_kinds_of_receipts() -> None:
    one, many = (set(dict(inspect.getmembers(cls, inspect.isfunction))) for cls in (PendingReceipt, PendingReceipts))
    assert one == many == {"__init__", "done", "result"}


def test_known_outcome_is_available_after_close(node: FakeNode) -> None:  # noqa: F811
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


def test_unknown_outcome_after_close_is_not_definite() -> None:
    thread = LoopThread("test")
    thread.stop()
    pending = PendingReceipt(thread, OpenBatch(deadline=0.0, timestamped=False), 0)
    with pytest.raises(ClosedError) as caught:
        pending.result()
    assert not caught.value.definite
