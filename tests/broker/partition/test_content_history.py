"""Contents read back from a log: the newest first, in short steps, and only as many as requested."""

from __future__ import annotations

import numpy as np
import pytest
from tests.broker.peer import Peer, batch

from tidelog_broker.core.deduplication_window import DeduplicationWindow
from tidelog_broker.node.node import Node
from tidelog_broker.partition import content_history
from tidelog_broker.partition.content_history import ContentHistory
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.content_hash import ContentHasher
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError

HASHER = ContentHasher(bytes(16))
COUNT = 40


@pytest.fixture
async def log(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> PartitionLog:
    """A log of 40 records in batches of 1 to 4, read in short steps."""
    monkeypatch.setattr(content_history, "RANGE_RECORDS", 7)
    monkeypatch.setattr(content_history, "READ_BYTES", 600)
    topic = await peer.create()
    at = 0
    while at < COUNT:
        size = min(at % 4 + 1, COUNT - at)
        await peer.publish(topic.topic_id, batch(*(b"%d" % number for number in range(at, at + size))))
        at += size
    return node.broker.partitions.get(topic.topic_id, 0).log


def window_of(log: PartitionLog, *, log_start: int = 0, records_max: int = 100, oldest_us: int | None = None) -> str:
    """Return the numbers that the window has, `low-high`, and how many steps that took."""
    history = ContentHistory(log, HASHER, log_start=log_start, end=COUNT, records_max=records_max, oldest_us=oldest_us)
    steps = 0
    while not history.is_whole:
        history.step()
        steps += 1
        assert steps < 100
    window = DeduplicationWindow(records_max=records_max, age_us=0, take=lambda _: True, give_back=lambda _: None)
    assert window.reserve(history.count)
    history.fill(window)
    contents = np.concatenate([HASHER.hashes(RecordBatch.parse(batch(b"%d" % number))) for number in range(COUNT)])
    found = window.find(contents, now_us=2**62, log_start=log_start)
    there = np.flatnonzero(found >= 0)
    assert (found[there] == there).all()
    return f"{there[0]}-{there[-1]} in {steps}" if len(there) else f"nothing in {steps}"


async def test_whole_log_is_read(log: PartitionLog) -> None:
    assert window_of(log).startswith("0-39 in")


@pytest.mark.parametrize("records_max", [1, 3, 17])
async def test_at_most_records_max_are_read(log: PartitionLog, records_max: int) -> None:
    told = window_of(log, records_max=records_max)
    assert told.startswith(f"{COUNT - records_max}-39 in")
    assert int(told.split()[-1]) < int(window_of(log).split()[-1])


async def test_records_below_the_log_start_are_not_read(log: PartitionLog) -> None:
    assert window_of(log, log_start=13).startswith("13-39 in")
    assert window_of(log, log_start=COUNT) == "nothing in 0"


async def test_reading_stops_at_expired_records(log: PartitionLog) -> None:
    assert int(window_of(log, oldest_us=2**62).split()[-1]) < int(window_of(log).split()[-1])


async def test_truncated_log_is_an_error(log: PartitionLog) -> None:
    history = ContentHistory(log, HASHER, log_start=0, end=COUNT + 5, records_max=9, oldest_us=None)
    assert not history.is_whole

    def read_all() -> None:
        for _ in range(100):
            history.step()

    with pytest.raises(ProtocolError):
        read_all()
