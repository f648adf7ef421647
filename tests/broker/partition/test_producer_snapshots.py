"""Producer state that an owner received and its log lacks is written before any other copy of it may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import chain_of, open_log, view_of, write_epoch

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.partition.producer_snapshots import SnapshotWriter
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.partition.partition_log import PartitionLog


@asynccontextmanager
async def writing(home: Path, store: PartitionLog, *ends: tuple[int, int]) -> AsyncIterator[SnapshotWriter]:
    """Return a writer for a log with these epoch ends; its snapshot is on the disk after the block."""
    chain = chain_of(*ends)
    workers = IoWorkers(1)
    try:
        offload = Offload(workers, asyncio.get_running_loop())
        replica = SimpleNamespace(state=chain)
        state: Any = SimpleNamespace(log=store, high_watermark=ends[-1][0], name=home.name, replica=replica)
        yield SnapshotWriter(state, view_of(store, chain), offload, 0)
        await offload.call(0, lambda: None)
    finally:
        workers.close()


def owner(table: ProducerTable, *ends: tuple[int, int], is_logged: bool) -> OffsetAssigner:
    return OffsetAssigner(chain_of(*ends).active, producers=table, is_logged=is_logged)


def told(store: PartitionLog) -> ProducerTable:
    table = ProducerTable()
    table.apply(next(store.reader.scan_headers(0))._replace(producer_id=7, base_sequence=0))
    return table


async def test_reported_producer_state_is_saved_even_without_records(tmp_path: Path) -> None:
    store = open_log(FaultyDisk(), tmp_path)
    end = write_epoch(store, 0, b"a", b"b")
    async with writing(tmp_path, store, end) as writer:
        writer.begin_epoch(owner(told(store), end, is_logged=False))
    [kept] = store.reader.load_producer_snapshots()
    assert kept[:3] == (0, *end), "where the epoch before has ended"
    table, _ = view_of(store, chain_of(end)).producers.at(2, log_start=0)
    assert table is not None
    assert len(table) == 1


async def test_state_contained_in_the_log_is_not_saved_at_each_epoch(tmp_path: Path) -> None:
    store = open_log(FaultyDisk(), tmp_path)
    end = write_epoch(store, 0, b"a", b"b")
    async with writing(tmp_path, store, end) as writer:
        writer.begin_epoch(owner(told(store), end, is_logged=True))
    assert list(store.reader.load_producer_snapshots()) == []


async def test_snapshot_is_saved_as_soon_as_the_log_exists(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, store = open_log(FaultyDisk(), tmp_path / "other"), open_log(FaultyDisk(), tmp_path)
    end = write_epoch(other, 0, b"a", b"b")
    async with writing(tmp_path, store, end) as writer:
        writer.begin_epoch(owner(told(other), end, is_logged=False))
        assert list(store.reader.load_producer_snapshots()) == []
        store.start_epoch(1, 2)
        writer.batches += 1
        assert writer.batches >= writer.due_batches, "the first append makes it due"
        writer.write_due()
    [kept] = store.reader.load_producer_snapshots()
    assert kept[:3] == (0, *end)
    table, _ = view_of(store, chain_of(end), log_start=2).producers.at(2, log_start=2)
    assert table is not None
    assert (len(table), table.known_from) == (1, 0)
