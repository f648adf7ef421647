from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidelog import Client, ClusterStatus, Partition, Replica, Topic
from tidelog_demo import copies
from tidelog_demo.copies import level_topic, shortages, whereabouts


def topic(*held: int, end: int = 10) -> Topic:
    replicas = tuple(Replica(f"node{at}", offset, end - offset) for at, offset in enumerate(held, 1))
    return Topic("flights", b"", (Partition(0, "node1", 0, high_watermark=end, replicas=replicas),))


def test_complete_copies_have_no_shortage() -> None:
    assert shortages(topic(10, 10, 10), 10, copies=3) == []


def test_missing_records_are_reported() -> None:
    assert shortages(topic(10, 10, 7), 10, copies=3) == ["partition 0 is missing 3 records on node3"]
    assert shortages(topic(10, 10, 10), 11, copies=3) == ["topic 'flights' has 10 records; 11 were published"]
    (problem,) = shortages(topic(10, 10), 10, copies=3)
    assert "2 replicas" in problem
    assert shortages(Topic("flights", b""), 10, copies=3) == ["topic 'flights' has 0 records; 10 were published"]


def test_the_table_lists_owner_and_copies() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(whereabouts(topic(10, 10, 7)))
    shown = console.export_text()
    assert "node1, node2, node3" in shown
    assert "10" in shown


class Told(Client):
    """A client that returns one status after the other."""

    def __init__(self, *topics: Topic) -> None:
        super().__init__("127.0.0.1:1")
        self.left = list(topics)

    async def cluster_status(self, *, topics: bool = True) -> ClusterStatus:
        return ClusterStatus(b"", topics=(self.left.pop(0) if len(self.left) > 1 else self.left[0],))


async def test_a_lagging_copy_is_awaited() -> None:
    assert await level_topic(Told(topic(10, 10, 7), topic(10, 10), topic(10, 10, 10)), "flights", copies=3) == topic(
        10, 10, 10
    )


async def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LEVEL_TIMEOUT_S", 0.0)
    assert await level_topic(Told(topic(10, 10, 7)), "flights", copies=3) == topic(10, 10, 7)
