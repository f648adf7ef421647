"""Visibility of replicated records for readers; three nodes, see `cluster_stand`. Single node: `test_partition`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, ClusterStand, started_cluster

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.mark.parametrize("ring_bytes", [0, 1 << 20])
async def test_uncommitted_records_are_not_readable_on_any_replica(stand: ClusterStand, ring_bytes: int) -> None:
    await stand.start(ring_bytes=ring_bytes)
    owner = await stand.holding(b"a", b"b")
    assert await stand.read(owner) == [b"a"]
    for name in NODES:
        stand.disks[name].heal()
    await stand.agree(b"a", b"b")


async def test_truncation_during_a_read_is_not_out_of_range(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.start(ring_bytes=0)
    await stand.publish(b"a")
    await stand.publish(b"b")
    await stand.agree(b"a", b"b")
    owner = await stand.owner()
    partition = stand.partition(next(name for name in NODES if name != owner))

    def cut(*_: object, **__: object) -> None:
        raise ProtocolError(pb.OFFSET_OUT_OF_RANGE, "offset 1; 0 to 0 can be read")

    monkeypatch.setattr(partition.log.reader, "read", cut)
    with pytest.raises(ProtocolError) as refused:
        await partition.reader.read_log(1, 100)
    assert refused.value.code == pb.NOT_OWNER, "the owner has it"
    monkeypatch.setattr(type(partition.state), "log_start", 2)
    with pytest.raises(ProtocolError) as deleted:
        await partition.reader.read_log(1, 100)
    assert deleted.value.code == pb.OFFSET_OUT_OF_RANGE
