"""Stores of the RocksDB engine on real files, the records they must have, and images of files after a power cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.broker.storage.rocksdb.faults import database_of

from tidelog.testing.engine_batches import append, batch, boundaries, random_group, read_all
from tidelog_broker.storage.engine.store import EpochStart, EpochStore
from tidelog_broker.storage.engines.stores import create_store, open_store
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.rocksdb.database import ROCKSDB
from tidelog_broker.storage.rocksdb.marks import SLOT_BYTES
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.header import unpack_header

TOPIC_ID = bytes(range(16))
EPOCH = 7
SEGMENT_BYTES = 4096
STORES = 3


@dataclass
class Written:
    """The records of a store.

    Attributes:
        start: its beginning: offset and digest.
        batches: all that were appended and not truncated or deleted.
        synced: the offset below which they were synced.
    """

    start: tuple[int, int] = (0, 0)
    batches: list[bytes] = field(default_factory=list[bytes])
    synced: int = 0

    @property
    def end(self) -> tuple[int, int]:
        return boundaries(self.batches, self.start)[-1]


class Stand:
    """An engine of a node whose data directory is `root`, with some stores."""

    def __init__(self, root: Path, *, preset: str = "small", fs: FileSystem | None = None) -> None:
        self.root = root
        self.partitions = root / "partitions"
        self.partitions.mkdir(parents=True, exist_ok=True)
        self.volume = Disk(fs=fs or RealFileSystem(), engines_dir=root / "engines", rocksdb_preset=preset)
        self.engine = RocksEngine(self.volume)
        self.volume.engines[ROCKSDB] = self.engine
        self.stores: dict[int, EpochStore] = {}
        self.written: dict[int, Written] = {}
        self.synced_bytes: dict[str, int] = {}
        """The synced size of each WAL file."""

    @property
    def database(self) -> Path:
        return self.root / "engines" / ROCKSDB / "db"

    def directory(self, partition: int) -> Path:
        return self.partitions / f"events.{partition}" / f"epoch-{EPOCH:08d}"

    def create(self, partition: int = 0, offset: int = 0, digest: int = 0) -> EpochStore:
        directory = self.directory(partition)
        directory.parent.mkdir(exist_ok=True)
        start = EpochStart(TOPIC_ID, partition, EPOCH, offset, digest)
        store = create_store(self.volume, directory, start, engine=ROCKSDB, segment_bytes=SEGMENT_BYTES)
        self.stores[partition] = store
        self.written[partition] = Written((offset, digest), synced=offset)
        self._note_syncs()
        return store

    def open(self, partition: int = 0, *, sealed_end_offset: int | None = None) -> EpochStore:
        store = open_store(
            self.volume,
            self.directory(partition),
            segment_bytes=SEGMENT_BYTES,
            sealed_end_offset=sealed_end_offset,
        )
        assert store is not None
        self.stores[partition] = store
        return store

    def append(self, group: list[bytearray], partition: int = 0) -> None:
        self.written[partition].batches += append(self.stores[partition], group)

    def sync(self, partition: int = 0) -> None:
        self.written[partition].synced = self.stores[partition].sync()

    def flush(self) -> None:
        """Write the memory tables to files, as RocksDB does when they are full; it syncs their WAL first."""
        database = database_of(self.engine)
        for family in database.families.values():
            family.flush(True)
        *older, _ = sorted(self.database.glob("*.log"))
        self.synced_bytes.update({path.name: path.stat().st_size for path in older})

    def close(self) -> None:
        self.engine.close()

    # --- random changes --------------------------------------------------------------------------------

    def change(self, random: Random, tell: Callable[[], None] = lambda: None) -> None:
        """Change a random store.

        Args:
            tell: called before the change, when `written` has what the store has at least after it.
        """
        partition = random.choice(list(self.stores))
        store, written = self.stores[partition], self.written[partition]
        match random.choice(["append"] * 8 + ["sync"] * 3 + ["truncate", "delete", "roll", "flush"]):
            case "append":
                tell()
                self.append(random_group(random), partition)
            case "sync":
                tell()
                self.sync(partition)
            case "truncate":
                cut = random.randint(0, len(written.batches))
                offset = boundaries(written.batches, written.start)[cut][0]
                written.synced = min(written.synced, offset)
                del written.batches[cut:]
                tell()
                store.truncate(offset)
                written.synced = offset
            case "delete" if store.segment_count > 1:
                below = store.oldest_end_offset
                gone = [one for one in written.batches if unpack_header(one).base_offset < below]
                written.start = boundaries(gone, written.start)[-1]
                del written.batches[: len(gone)]
                tell()
                store.delete_oldest_segment()
                store.sync_names()
                written.synced = max(written.synced, below)
            case "roll":
                tell()
                store.roll()
            case _:
                tell()
                self.flush()

    def check(self, partition: int, written: Written) -> None:
        """Check that a store has what was synced, and nothing else than what was written."""
        store = self.open(partition)
        assert store.damage is None, store.damage
        assert store.state == "active"
        assert store.start_offset == written.start[0]
        assert store.end_offset >= written.synced, "synced records are lost without damage"
        found = read_all(store)
        assert found == written.batches[: len(found)]
        assert (store.end_offset, store.end_digest) == boundaries(found, written.start)[-1]
        append(store, random_group(Random(1)))
        store.sync()

    # --- a power cut -----------------------------------------------------------------------------------

    def _note_syncs(self) -> None:
        """Record the sizes of the WAL at each of its syncs."""
        database: Any = database_of(self.engine)
        if hasattr(database, "is_noted"):
            return
        for family in database.families.values():  # The files of an image must be of one moment.
            family.set_options({"disable_auto_compactions": "true"})
        database.is_noted = True
        plain = database.flush_wal

        def noted() -> None:
            database.opened.flush_wal(sync=False)
            before = {path.name: path.stat().st_size for path in self.database.glob("*.log")}
            plain()
            self.synced_bytes.update(before)

        database.flush_wal = noted

    def power_cut(self, target: Path, random: Random) -> None:
        """Copy all files to `target` as a power cut may leave them: unsynced bytes are lost, torn or kept.

        RocksDB syncs all of its files before it uses them, except the WAL; sync marks are written without a sync.
        """
        marks_before = (self.root / "marks-synced").read_bytes() if (self.root / "marks-synced").exists() else b""
        while True:
            try:
                shutil.copytree(self.root, target)
                break
            except shutil.Error:  # RocksDB has removed a file that it does not need any more.
                shutil.rmtree(target)
        files = sorted((target / "engines" / ROCKSDB / "db").glob("*.log"))
        is_whole = True
        for path in files:
            synced_bytes = self.synced_bytes.get(path.name, 0)
            if not is_whole:  # The files of the WAL are synced in their order.
                synced_bytes = min(synced_bytes, path.stat().st_size)
            _tear(path, synced_bytes, random)
            is_whole = is_whole and path.stat().st_size == synced_bytes
        marks = target / "engines" / ROCKSDB / "marks"
        data = bytearray(marks.read_bytes())
        for at in range(0, len(data), SLOT_BYTES):
            if at + SLOT_BYTES <= len(marks_before) and random.random() < 0.5:
                data[at : at + SLOT_BYTES] = marks_before[at : at + SLOT_BYTES]
        marks.write_bytes(data)


def restarted(stand: Stand) -> Stand:
    """Return the node after a kill: the database was not closed, and its files are copied."""
    root = stand.root.with_name(stand.root.name + "-again")
    shutil.copytree(stand.root, root)
    again = Stand(root)
    again.written = stand.written
    return again


def three_stores(stand: Stand) -> None:
    """Append to three stores in turn and sync; only the last groups of store 1 are not synced."""
    for partition in range(STORES):
        stand.create(partition)
    for number in range(20):
        for partition in range(STORES):
            stand.append([batch([b"k%d" % number], size_bytes=200)], partition)
    for partition in range(STORES):
        stand.sync(partition)


def sorted_tables(stand: Stand) -> list[Path]:
    """Flush and close; return the files of the column families with records, largest first."""
    stand.flush()
    stand.close()
    return sorted(stand.database.glob("*.sst"), key=lambda path: -path.stat().st_size)


def _tear(path: Path, synced_bytes: int, random: Random) -> None:
    """Lose or tear the bytes of a file that were not synced."""
    data = bytearray(path.read_bytes())
    tail = len(data) - synced_bytes
    if tail <= 0:
        return
    match random.choice(["cut", "zero", "hole", "keep"]):
        case "cut":
            del data[synced_bytes + random.randint(0, tail) :]
        case "zero":
            at = synced_bytes + random.randint(0, tail - 1)
            data[at:] = bytes(len(data) - at)
        case "hole":
            at = synced_bytes + random.randint(0, tail - 1)
            stop = min(len(data), at + random.choice([1, 100, 512, 4096]))
            data[at:stop] = random.randbytes(stop - at)
        case _:
            pass
    path.write_bytes(data)
