from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from tidelog import Client, ClusterStatus, Node, Partition, Topic
from tidelog.model import Replica
from tidelog_cli.cluster import drain_progress
from tidelog_cli.cluster.drain_progress import Progress, drain_progress_of, fetch_progress_of, watch

BOTH = ("ingestion", "persistence")


def cluster(*placements: str, nodes: str = "abcd", copies: int = 3, missing: int = 0) -> ClusterStatus:
    """Return a cluster of which `a` drains; the first of each placement owns the partition and lacks `missing`."""
    partitions = tuple(
        Partition(
            index,
            placement[0],
            1,
            tuple(placement),
            replicas=(Replica(placement[0], 0, 0, missing_epochs=int(missing > 0), missing_records=missing),),
        )
        for index, placement in enumerate(placements)
    )
    return ClusterStatus(
        b"",
        tuple(Node(name, "h", 1, roles=BOTH, draining=name == "a") for name in nodes),
        (Topic("t", b"t", partitions, replication_factor=copies),),
    )


def test_a_drain_is_done_when_nothing_is_left_and_all_copies_are_whole() -> None:
    assert drain_progress_of("a", cluster("bcd", "cab")) == ("a is draining; it stores 1 partition", False)
    assert drain_progress_of("a", cluster("bcd", "cdb", missing=500)) == (
        "a stores no partitions; 2 copies must still fetch 1,000 older records",
        False,
    )
    told = drain_progress_of("a", cluster("bcd"))
    assert told.done
    assert "cluster remove a" in told.text


def test_immovable_partitions_are_reported_and_not_waited_for() -> None:
    told = drain_progress_of("a", cluster("abc", "bca", "cab", nodes="abc"))
    assert "it stores 3 partitions, 2 of which cannot move" in told.text
    assert not told.done, "its ownership moves to another replica"
    told = drain_progress_of("a", cluster("bca", "cab", nodes="abc"))
    assert "2 of which cannot move" in told.text
    assert told.done
    told = drain_progress_of("a", cluster("a", nodes="a", copies=1))
    assert told.done, "the last node keeps everything"


def test_history_on_its_way_is_counted() -> None:
    assert fetch_progress_of(cluster("bcd")).done
    assert fetch_progress_of(cluster("bcd", missing=1)) == ("1 copy must still fetch 1 older records", False)


def test_a_copy_in_doubt_is_waited_for() -> None:
    status = cluster("bcd", "cdb", missing=2)
    (topic,) = status.topics
    in_doubt = Partition(2, "d", 1, ("d", "b"), replicas=(Replica("d", 0, 0), Replica("b", 0, 0, missing_epochs=1)))
    both = replace(status, topics=(replace(topic, partitions=(*topic.partitions, in_doubt)),))
    assert fetch_progress_of(both) == ("2 copies must still fetch 4 older records, 1 copy may be incomplete", False)
    only = replace(status, topics=(replace(topic, partitions=(in_doubt,)),))
    assert drain_progress_of("a", only) == ("a stores no partitions; 1 copy may be incomplete", False)


async def test_the_end_is_waited_for_and_each_change_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Asked:
        async def cluster_status(self) -> ClusterStatus:
            return ClusterStatus(b"")

    monkeypatch.setattr(drain_progress, "LOOK_S", 0)
    steps = iter(
        [
            Progress("far", done=False),
            Progress("far", done=False),
            Progress("near", done=False),
            Progress("there", done=True),
        ]
    )
    async with asyncio.timeout(10):
        await watch(cast("Client", Asked()), lambda _: next(steps))
    shown = capsys.readouterr()
    assert (shown.err, shown.out) == ("far\nnear\n", "done: there\n")
