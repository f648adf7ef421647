"""Reading by key on replicas, see `cluster_stand`; alone: `tests/broker/server/handlers/test_filters.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.stand import settled
from tests.broker.storage.keyed import keyed, records_of

from tidelog_broker.partition.filtered_reader import indexed_columns, parse_record_filter
from tidelog_broker.partition.partition import Partition
from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

PLENTY = 1 << 20


def _has_all(partition: Partition) -> bool:
    return partition.state.readable_end == 6


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.mark.parametrize("ring_bytes", [0, 1 << 20])
@pytest.mark.parametrize("indexed", [True, False])
async def test_every_replica_returns_only_committed_matches(
    stand: ClusterStand, ring_bytes: int, indexed: bool
) -> None:
    await stand.start(ring_bytes=ring_bytes)
    owner = await stand.owner()
    peer = await stand.peer(owner)
    for name in NODES:
        if indexed:
            stand.partition(name).log.indexes.switch(frozenset({"key"}))
    for _ in range(3):
        await peer.publish(TOPIC_ID, bytes(keyed([b"a", b"b"])))
    for name in NODES:
        partition = stand.partition(name)
        await settled(partial(_has_all, partition), "it is not replicated")
        offset, found = 0, list[int]()
        while offset < 6:  # a follower's memory may have less of it yet than its log
            some = await partition.filtered.read(offset, PLENTY, RecordFilter(b"a"))
            assert some.next_offset > offset
            offset, found = some.next_offset, [*found, *(one.offset for one in records_of(some.batches))]
        assert (found, offset) == ([0, 2, 4], 6)
        assert (await partition.filtered.read(6, PLENTY, RecordFilter(b"a"))) == ([], 6)
        newest = await partition.filtered.find_newest(RecordFilter(b"b"), lambda: True)
        assert newest is not None
        assert newest.offset == 5
        assert await partition.filtered.find_newest(RecordFilter(b"nobody"), lambda: True) is None
        assert await partition.filtered.find_newest(RecordFilter(b"b"), lambda: False) is None
    for name in NODES:
        if name != owner:
            stand.disks[name].hold("sync")
    peer.post_publish(TOPIC_ID, bytes(keyed([b"a"])))
    await settled(lambda: stand.partition(owner).log.end_offset == 7, "the owner has not written it")
    assert (await stand.partition(owner).filtered.read(5, PLENTY, RecordFilter(b"a"))).next_offset == 6
    newest = await stand.partition(owner).filtered.find_newest(RecordFilter(b"a"), lambda: True)
    assert newest is not None
    assert newest.offset == 4
    for name in NODES:
        stand.disks[name].heal()


def test_filter_is_parsed_and_validated() -> None:
    assert parse_record_filter(pb.RecordFilter()) is None
    assert parse_record_filter(pb.RecordFilter(key=b"")) == RecordFilter(b"", None)
    assert parse_record_filter(pb.RecordFilter(key=b"k", tag="t")) == RecordFilter(b"k", "t")
    with pytest.raises(ProtocolError) as caught:
        parse_record_filter(pb.RecordFilter(tag="ä" * 2049))
    assert caught.value.code == pb.INVALID_REQUEST


def test_indexed_columns_of_a_topic() -> None:
    assert indexed_columns(pb.TopicConfig()) == frozenset()
    assert indexed_columns(pb.TopicConfig(index_key=True)) == {"key"}
    assert indexed_columns(pb.TopicConfig(index_key=True, index_tag=True)) == {"key", "tag"}
