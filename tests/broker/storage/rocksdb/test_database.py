"""Writes, shared syncs, write stalls and full disks of the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker.storage.rocksdb.faults import break_wal, database_of
from tests.broker.storage.rocksdb.stand import Stand

from tidelog.testing.engine_batches import append, batch, read_all
from tidelog.testing.failing_files import FailingFileSystem
from tidelog_broker.storage.io.errors import DiskFullError, EngineBusyError, StorageFailedError
from tidelog_broker.storage.rocksdb import database as database_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import stamp_owner


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def stop_writes(stand: Stand, *, is_stopped: bool) -> None:
    """Let RocksDB stall all writes, as when its background work lags behind; or let it continue."""
    family = database_of(stand.engine).families["time"]
    if not is_stopped:
        family.set_options({"level0_stop_writes_trigger": "36", "level0_slowdown_writes_trigger": "36"})
        return
    family.set_options({"disable_auto_compactions": "false", "level0_file_num_compaction_trigger": "1000"})
    for number in range(2):
        family.put(b"%d" % number, b"")
        family.flush(True)
    family.set_options({"level0_slowdown_writes_trigger": "1", "level0_stop_writes_trigger": "1"})


def test_stalled_database_refuses_a_group_before_it_has_offsets(stand: Stand) -> None:
    store = stand.create()
    stand.append([batch([b"a"])])
    stop_writes(stand, is_stopped=True)
    database_of(stand.engine).look_for_stall()
    assert not store.has_room(64)
    began_s = time.monotonic()
    with pytest.raises(EngineBusyError, match=r"accepts no records now.*send again") as refused:
        store.ensure_space(64)
    assert time.monotonic() - began_s < 2
    assert refused.value.code == pb.OVERLOADED
    assert (store.state, store.end_offset) == ("active", 1)
    assert read_all(store) == stand.written[0].batches
    stop_writes(stand, is_stopped=False)
    stand.append([batch([b"b"])])
    stand.sync()
    assert read_all(store) == stand.written[0].batches


def test_group_has_no_room_once_a_stall_has_begun_in_the_background(stand: Stand) -> None:
    """A group with room may be written on the event loop, which would sleep until the stall ends."""
    store = stand.create()
    stand.append([batch([b"k"])])
    assert store.has_room(64)
    stop_writes(stand, is_stopped=True)
    assert not store.has_room(64)
    stop_writes(stand, is_stopped=False)
    assert store.has_room(64)


def test_write_whose_offsets_are_assigned_waits_for_a_stall_to_end(stand: Stand) -> None:
    store = stand.create()
    store.ensure_space(1000)
    stop_writes(stand, is_stopped=True)
    waiting = threading.Thread(target=lambda: store.append(stamped(b"a")))
    waiting.start()
    waiting.join(timeout=0.3)
    assert waiting.is_alive()
    stop_writes(stand, is_stopped=False)
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert (store.end_offset, store.state) == (1, "active")


def stamped(key: bytes) -> list[bytearray]:
    one = batch([key])
    stamp_owner(one, base_offset=0, append_timestamp_us=7, epoch=7, owner_incarnation=9, previous_digest=0)
    return [one]


def test_stall_has_a_bound(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "STALL_FAILED_S", 0.2)
    store = stand.create()
    store.ensure_space(1000)
    stop_writes(stand, is_stopped=True)
    with pytest.raises(StorageFailedError, match=r"a write waited 0 s for the database failed: .*[Ss]tall"):
        store.append(stamped(b"a"))
    assert store.state == "failed"
    stop_writes(stand, is_stopped=False)


def test_other_threads_run_while_the_disk_is_slow(stand: Stand) -> None:
    """The WAL is written and synced without Python's lock."""
    store = stand.create()
    database = cast(Any, database_of(stand.engine))
    began, ticks = threading.Event(), 0

    def work() -> None:
        began.set()
        for _ in range(20):
            append(store, [batch([b"a"], size_bytes=100_000)])
            store.sync()

    worker = threading.Thread(target=work)
    worker.start()
    began.wait()
    while worker.is_alive():
        ticks += 1
        time.sleep(0.0002)
    assert ticks >= 20
    assert not database.failure


def test_stores_that_wait_together_share_a_sync(stand: Stand) -> None:
    database = cast(Any, database_of_new(stand))
    stores = [stand.create(partition) for partition in range(8)]
    begun, may_end, syncs = threading.Event(), threading.Event(), 0
    plain = database.flush_wal

    def slow() -> None:
        nonlocal syncs
        syncs += 1
        begun.set()
        assert may_end.wait(timeout=30)
        plain()

    for partition in range(8):
        stand.append([batch([b"a"])], partition)
    database.flush_wal = slow
    threads = [threading.Thread(target=store.sync) for store in stores]
    for thread in threads:
        thread.start()
    assert begun.wait(timeout=30)
    deadline_s = time.monotonic() + 30
    while database.waiting < 7:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    may_end.set()
    for thread in threads:
        thread.join(timeout=30)
    assert syncs == 2
    assert [store.synced_offset for store in stores] == [1] * 8


def database_of_new(stand: Stand) -> object:
    stand.create(99)
    return database_of(stand.engine)


def test_failed_sync_fails_all_who_wait_for_it(stand: Stand) -> None:
    stores = [stand.create(partition) for partition in range(3)]
    for partition in range(3):
        stand.append([batch([b"a"])], partition)
    break_wal(stand.engine, "datasync")
    for store in stores:
        with pytest.raises(StorageFailedError, match=r"a sync failed: .*check the disk and restart the node"):
            store.sync()
        assert store.state == "failed"
    break_wal(stand.engine, "")
    with pytest.raises(StorageFailedError):
        stores[0].sync()


def test_sync_that_was_interrupted_acknowledges_nothing(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of `rocksdict` is no `Exception`; those who wait for the sync must not take it for done."""
    store, other = stand.create(0), stand.create(1)
    for partition in (0, 1):
        stand.append([batch([b"k"])], partition)
    database = database_of(stand.engine)

    class PanicError(BaseException):
        pass

    def interrupted() -> None:
        raise PanicError

    with monkeypatch.context() as patch:
        patch.setattr(database, "flush_wal", interrupted)
        with pytest.raises(PanicError):
            store.sync()
    assert store.synced_offset == 0
    with pytest.raises(StorageFailedError, match="a sync failed"):
        other.sync()


def test_full_disk_gives_its_reserve_to_the_database_and_takes_it_again(tmp_path: Path) -> None:
    fs = FailingFileSystem()
    stand = Stand(tmp_path / "node", fs=fs)
    store = stand.create()
    reserve = tmp_path / "node" / "engines" / "rocksdb" / "reserve"
    store.ensure_space(64)
    assert reserve.stat().st_size == 4 << 20
    fs.full = True
    with pytest.raises(DiskFullError, match=r"bytes, which engine rocksdb needs for .*, are not free.*free disk space"):
        store.ensure_space(10_000_000)
    assert reserve.stat().st_size == 0
    fs.full = False
    while stand.stores[0].segment_count < 30:
        stand.append([batch([b"a"], size_bytes=4000)])
    assert reserve.stat().st_size == 4 << 20
    fs.full = True
    assert store.delete_oldest_segment() > 0
    store.sync_names()
    stand.close()
