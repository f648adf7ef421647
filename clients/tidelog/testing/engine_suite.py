"""The conformance suite of storage engines: the properties on which the log above an engine relies.

    from tidelog.testing.engine_suite import EngineSuite

    class TestMyEngine(EngineSuite):
        def make_engine(self, volume):
            return MyEngine(volume)

pytest runs the inherited tests with the engine that `make_engine` returns. The tests need the extra `broker`. An engine
that passes them has the properties that its `Capabilities` declare; a test of a property that is not declared is
skipped. `tidelog_broker.storage.engine` describes the interface, and `ScannedReading` in its module `scanned` is a
reader for engines without indexes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tidelog.testing.engine_batches import (
    EPOCH,
    PARTITION,
    SEGMENT_BYTES,
    TOPIC_ID,
    append,
    batch,
    boundaries,
    keys_of,
    needed_bytes,
    random_group,
    read_all,
)
from tidelog.testing.failing_files import FailingFileSystem
from tidelog_broker.storage.engine.store import Engine, EpochStart, EpochStore, Volume
from tidelog_broker.storage.engines.stores import create_store, new_volume, open_store, remove_store
from tidelog_broker.storage.io.errors import (
    DamagedError,
    DiskFullError,
    DivergedError,
    LimboError,
    StorageError,
    StorageFailedError,
)
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX


class EngineSuite:
    """Tests the engine that `make_engine` returns; a subclass overrides this method."""

    def make_engine(self, volume: Volume) -> Engine:
        """Return the engine under test, as after a start of the node."""
        raise NotImplementedError

    # --- surroundings ----------------------------------------------------------------------------------

    @pytest.fixture
    def fs(self) -> FailingFileSystem:
        """Return a file system whose operations can fail."""
        return FailingFileSystem()

    @pytest.fixture
    def volume(self, fs: FailingFileSystem) -> Volume:
        """Return the storage resources of a running node, with the engine under test."""
        return self.started(fs)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Return the path of the epoch's directory."""
        return tmp_path / "epoch-00000007"

    @pytest.fixture
    def store(self, volume: Volume, directory: Path) -> Iterator[EpochStore]:
        """Return a new store."""
        store = self.create(volume, directory)
        yield store
        store.close(sync=False)

    def started(self, fs: FileSystem) -> Volume:
        """Return the resources of a node that has just been started on these files."""
        volume = new_volume(fs)
        engine = self.make_engine(volume)
        volume.engines[engine.name] = engine
        return volume

    def engine_of(self, volume: Volume) -> Engine:
        """Return the engine of a node."""
        (engine,) = volume.engines.values()
        return engine

    def create(
        self, volume: Volume, directory: Path, *, offset: int = 0, digest: int = 0, is_lacking: bool = False
    ) -> EpochStore:
        """Create a store.

        Args:
            is_lacking: whether records of the epoch are missing from the store, so that it needs a repair.
        """
        return create_store(
            volume,
            directory,
            EpochStart(TOPIC_ID, PARTITION, EPOCH, offset, digest),
            engine=self.engine_of(volume).name,
            segment_bytes=SEGMENT_BYTES,
            is_lacking=is_lacking,
        )

    def reopened(self, volume: Volume, directory: Path, *, sealed_end_offset: int | None = None) -> EpochStore:
        """Open a store that this process has closed; its contents must be complete."""
        store = open_store(volume, directory, segment_bytes=SEGMENT_BYTES, sealed_end_offset=sealed_end_offset)
        assert store is not None
        return store

    # --- appending and reading -------------------------------------------------------------------------

    def test_new_store_is_empty_and_takes_appends(self, volume: Volume, directory: Path) -> None:
        """A new store begins and ends at its start, with the digest before it."""
        store = self.create(volume, directory, offset=500, digest=0xABCD)
        assert (store.start_offset, store.end_offset, store.synced_offset) == (500, 500, 500)
        assert (store.start_digest, store.end_digest) == (0xABCD, 0xABCD)
        assert (store.topic_id, store.partition, store.epoch) == (TOPIC_ID, PARTITION, EPOCH)
        assert (store.state, store.damage, store.is_lost, store.is_repairing) == ("active", None, False, False)
        assert store.directory == directory
        assert len(store.segments) == store.segment_count == 1
        assert read_all(store) == []
        written = append(store, [batch([b"a", b"b"])])
        assert (store.end_offset, read_all(store)) == (502, written)
        store.close()

    def test_batches_are_read_as_they_were_stored(self, store: EpochStore) -> None:
        """Every batch is read with the bytes that were stored, whatever the size of a read is."""
        random = Random(1)
        written = [one for _ in range(60) for one in append(store, random_group(random))]
        for max_bytes in (1, 300, 5000, FETCH_BYTES_MAX):
            assert read_all(store, max_bytes=max_bytes) == written
        assert store.segment_count > 1, "a new segment begins when one is full"
        assert store.size_bytes >= sum(map(len, written))

    def test_memory_of_an_appended_batch_may_be_used_again(self, store: EpochStore) -> None:
        """The store does not refer to the caller's memory after the append."""
        group = [batch([b"a"])]
        written = append(store, group)
        group[0][:] = bytes(len(group[0]))
        assert read_all(store) == written

    def test_read_ends_at_its_limits(self, store: EpochStore) -> None:
        """No batch ends above the limit; the first one has the requested offset, and may alone exceed `max_bytes`."""
        written = append(store, [batch([b"a"] * 3) for _ in range(4)])
        read = store.reader.read
        assert read(4, FETCH_BYTES_MAX, limit_offset=9).next_offset == 9
        assert list(map(bytes, read(4, FETCH_BYTES_MAX, limit_offset=11).batches)) == written[1:3]
        assert list(map(bytes, read(6, 1, limit_offset=12).batches)) == written[2:3]
        assert read(6, 1, limit_offset=12, at_least_one=False).batches == []
        assert read(0, FETCH_BYTES_MAX, limit_offset=2).batches == []
        at_end = read(12, FETCH_BYTES_MAX, limit_offset=12)
        assert (at_end.batches, at_end.next_offset) == ([], 12)

    def test_offsets_that_are_not_held_are_out_of_range(self, store: EpochStore) -> None:
        """Reading above the end, or below the start after a deletion, raises OFFSET_OUT_OF_RANGE."""
        while store.segment_count < 3:
            append(store, [batch([b"a"], size_bytes=500)])
        assert store.delete_oldest_segment() > 0
        assert store.start_offset == store.segments[0].base_offset > 0
        for offset in (store.start_offset - 1, store.end_offset + 1):
            with pytest.raises(ProtocolError) as refused:
                store.reader.read(offset, 100, limit_offset=store.end_offset)
            assert refused.value.code == pb.OFFSET_OUT_OF_RANGE
        assert unpack_header(read_all(store)[0]).base_offset == store.start_offset

    def test_digests_are_known_at_boundaries_only(self, store: EpochStore) -> None:
        """The running digest at the end of a batch is that of its header; within a batch it is unknown."""
        written = [one for _ in range(20) for one in append(store, [batch([b"a", b"b"], size_bytes=200)])]
        known = dict(boundaries(written))
        for offset in range(-1, store.end_offset + 2):
            assert store.reader.digest_at(offset) == known.get(offset)
            start = offset - offset % 2 if 0 <= offset < store.end_offset else None
            assert store.reader.batch_start(offset) == start

    def test_headers_are_scanned_from_the_batch_that_holds_an_offset(self, store: EpochStore) -> None:
        """A scan begins with the batch that has the offset, and ends at the end of the store."""
        written = [one for _ in range(20) for one in append(store, [batch([b"a", b"b"], size_bytes=200)])]
        headers = list(map(unpack_header, written))
        for offset in (0, 1, 7, 38, 39):
            assert list(store.reader.scan_headers(offset)) == headers[offset // 2 :]

    def test_first_batch_of_a_time_is_found(self, store: EpochStore) -> None:
        """The first batch with a record at or after a time is found, even if timestamps do not ascend."""
        random = Random(2)
        written = [one for _ in range(30) for one in append(store, random_group(random))]
        headers = list(map(unpack_header, written))
        for _ in range(100):
            time_us, offset = random.randint(0, 1100), random.randint(0, store.end_offset)
            later = (one for one in headers if one.end_offset > offset and one.max_timestamp_us >= time_us)
            expected = next(later, None)
            found = store.reader.find_by_time(time_us, offset)
            assert found == (expected.base_offset if expected is not None else None)

    def test_every_batch_with_a_key_is_a_candidate(self, store: EpochStore) -> None:
        """The candidates for a key include every batch with the key, with or without an index, in both directions."""
        random = Random(3)
        written = [one for _ in range(40) for one in append(store, random_group(random))]
        for key in (b"a", b"", b"missing"):
            having = [one for one in written if key in keys_of(one)]
            for offset, limit in ((0, store.end_offset), (9, store.end_offset), (0, store.end_offset // 2)):
                headers = [(unpack_header(one), one) for one in having]
                expected = [one for head, one in headers if head.end_offset > offset and head.end_offset <= limit]
                found = self.candidates(store, key, offset, limit)
                assert set(expected) <= set(found)
                assert found == [one for one in written if one in found], "candidates are in the order of offsets"
            newest_first = self.candidates_reversed(store, key, store.end_offset)
            assert set(having) <= set(newest_first)
            assert newest_first[::-1] == [one for one in written if one in newest_first]

    def candidates(self, store: EpochStore, key: bytes, offset: int, limit_offset: int) -> list[bytes]:
        """Return the batches that may have a key."""
        found: list[bytes] = []
        for extent in store.reader.extents(offset, limit_offset):
            extent.prepare("key", None)
            first = extent.first
            while first < extent.stop:
                named = extent.find("key", hash_one(key), first, extent.stop, 3, newest=False)
                for slot in named.slots:
                    (one,) = extent.read(slot, slot + 1)
                    assert unpack_header(extent.head(slot)) == unpack_header(one)
                    assert (extent.offset_of(slot), extent.length_of(slot)) == (
                        unpack_header(one).base_offset,
                        len(one),
                    )
                    found.append(bytes(one))
                assert named.stop > first, "each lookup examines at least one batch"
                first = named.stop
        return found

    def candidates_reversed(self, store: EpochStore, key: bytes, limit_offset: int) -> list[bytes]:
        """Return the batches that may have a key, from the highest offset to the lowest."""
        found: list[bytes] = []
        for extent in store.reader.extents_reversed(limit_offset):
            extent.prepare("key", None)
            stop = extent.stop
            while stop > extent.first:
                named = extent.find("key", hash_one(key), extent.first, stop, 3, newest=True)
                found += [bytes(extent.read(slot, slot + 1)[0]) for slot in reversed(named.slots)]
                assert named.first < stop, "each lookup examines at least one batch"
                stop = named.first
        return found

    def test_readers_see_a_prefix_while_records_are_appended(self, store: EpochStore) -> None:
        """A reader on another thread reads whole batches without a gap."""
        failures: list[str] = []
        is_done = threading.Event()

        def follow() -> None:
            offset = 0
            while not is_done.is_set() or offset < store.end_offset:
                read = store.reader.read(offset, 2000, limit_offset=store.end_offset)
                for one in read.batches:
                    header = unpack_header(one)
                    if header.base_offset != offset:
                        failures.append(f"a batch at offset {header.base_offset}, expected {offset}")
                        return
                    offset = header.end_offset

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            for number in range(400):
                append(store, [batch([b"a"] * (number % 3 + 1), size_bytes=number % 300)])
        finally:
            is_done.set()
            reader.join(timeout=60)
        assert not reader.is_alive()
        assert failures == []

    # --- the end of an epoch ---------------------------------------------------------------------------

    def test_sealed_store_is_read_and_takes_no_appends(self, store: EpochStore) -> None:
        """After `seal` everything can be read, and an append is refused."""
        written = append(store, [batch([b"a"])])
        store.seal()
        assert store.state == "sealed"
        assert read_all(store) == written
        with pytest.raises(StorageFailedError):
            append(store, [batch([b"b"])])
        assert not store.has_room(64)
        assert store.end_offset == 1

    @pytest.mark.parametrize("sealed", [False, True])
    def test_truncated_store_continues_at_the_boundary(self, store: EpochStore, sealed: bool) -> None:
        """Records above a boundary are removed, and other records continue at the boundary."""
        written = [one for _ in range(20) for one in append(store, [batch([b"a", b"b"], size_bytes=300)])]
        if sealed:
            store.seal()
        for offset in (40, 22, 6):
            store.truncate(offset)
            assert store.state == ("sealed" if sealed and offset == 40 else "active")
            assert (store.end_offset, store.end_digest) == boundaries(written)[offset // 2]
            assert read_all(store) == written[: offset // 2]
            assert self.candidates(store, b"a", 0, store.end_offset) == written[: offset // 2]
        kept = written[:3] + append(store, [batch([b"other"] * 5)])
        assert read_all(store) == kept
        assert self.candidates(store, b"other", 0, store.end_offset)[-1:] == kept[-1:]

    def test_truncation_within_a_batch_is_refused(self, store: EpochStore) -> None:
        """A truncation to an offset at which no batch ends changes nothing."""
        written = append(store, [batch([b"a", b"b"]), batch([b"c"])])
        for offset in (1, 4):
            with pytest.raises(DivergedError):
                store.truncate(offset)
        assert read_all(store) == written
        append(store, [batch([b"d"])])

    def test_truncation_to_the_start_leaves_an_empty_store(self, store: EpochStore) -> None:
        """All records of a store may be above the end of its epoch, so all of them can be truncated."""
        append(store, [batch([b"a"])])
        store.truncate(0)
        assert (store.end_offset, store.end_digest, read_all(store)) == (0, 0, [])
        written = append(store, [batch([b"b"])])
        assert read_all(store) == written

    # --- segments --------------------------------------------------------------------------------------

    def test_parts_cover_the_store_without_a_gap(self, store: EpochStore) -> None:
        """Each segment begins at the end of the previous one, with the digest there; only the last segment grows."""
        random = Random(4)
        for _ in range(40):
            append(store, random_group(random))
        parts = store.segments
        assert (parts[0].base_offset, parts[-1].end_offset) == (store.start_offset, store.end_offset)
        for before, after in pairwise(parts):
            assert before.end_offset == after.base_offset
            assert after.start_digest == store.reader.digest_at(after.base_offset)
            assert not before.is_growing
        assert parts[-1].is_growing
        assert store.oldest_end_offset == parts[0].end_offset
        assert len({part.path for part in parts}) == len(parts)

    def test_roll_begins_another_part_once(self, store: EpochStore) -> None:
        """`roll` begins a new segment unless the last one is empty."""
        assert not store.roll()
        append(store, [batch([b"a"])])
        assert store.roll()
        assert not store.roll()
        assert store.segment_count == 2

    def test_deleted_part_frees_its_bytes(self, store: EpochStore) -> None:
        """The segment with the lowest offsets is removed, its bytes are freed, and the other segments remain."""
        while store.segment_count < 4:
            append(store, [batch([b"a"], size_bytes=700)])
        rest, size_bytes = [part.base_offset for part in store.segments[1:]], store.size_bytes
        freed_bytes = store.delete_oldest_segment()
        store.sync_names()
        assert [part.base_offset for part in store.segments] == rest
        assert store.size_bytes == size_bytes - freed_bytes
        assert store.start_digest == store.reader.digest_at(store.start_offset)

    # --- space -----------------------------------------------------------------------------------------

    def test_room_is_what_was_reserved(self, store: EpochStore) -> None:
        """After `ensure_space` there is room for the group of batches, and its append succeeds."""
        store.ensure_space(needed_bytes([batch([b"a"])]))
        assert store.has_room(needed_bytes([batch([b"a"])]))
        assert not store.has_room(1 << 50)
        append(store, [batch([b"a"])])

    def test_full_disk_changes_nothing_and_passes(self, volume: Volume, fs: FailingFileSystem, directory: Path) -> None:
        """On a full disk a group is refused unless its space is reserved; when space is free, groups are accepted."""
        store = self.create(volume, directory)
        written = append(store, [batch([b"a"])])
        fs.full = True
        refused = 0
        for _ in range(300):
            before = store.end_offset, store.end_digest
            try:
                written += append(store, [batch([b"a"], size_bytes=3000)])
            except DiskFullError:
                refused += 1
                assert (store.end_offset, store.end_digest, store.state) == (*before, "active")
        assert refused or not self.engine_of(volume).capabilities.durable, "a durable engine needs disk space"
        fs.full = False
        written += append(store, [batch([b"b"])])
        store.sync()
        assert read_all(store) == written
        store.close()

    def test_bound_of_the_engine_refuses_a_group(self, volume: Volume, directory: Path) -> None:
        """A group beyond `bytes_max` is refused and changes nothing; it is accepted after a segment was deleted."""
        bytes_max = self.engine_of(volume).capabilities.bytes_max
        if not bytes_max:
            pytest.skip("the engine has no bound of its own")
        store = self.create(volume, directory)
        is_refused = False
        while not is_refused:
            try:
                append(store, [batch([b"a"], size_bytes=100_000)])
            except DiskFullError:
                is_refused = True
        assert 0 < store.size_bytes <= bytes_max
        assert store.state == "active"
        while store.segment_count > 1:
            store.delete_oldest_segment()
        append(store, [batch([b"a"], size_bytes=100_000)])
        store.close()
        remove_store(volume, directory)
        other = self.create(volume, directory)
        append(other, [batch([b"a"], size_bytes=100_000)])
        other.close()

    @pytest.mark.parametrize("operation", ["pwritev", "datasync"])
    def test_failed_write_is_final(
        self, volume: Volume, fs: FailingFileSystem, directory: Path, operation: str
    ) -> None:
        """After a failed write or sync the store takes no more writes; synced records stay readable."""
        if not self.engine_of(volume).capabilities.durable:
            pytest.skip("the engine writes no records to the disk")
        store = self.create(volume, directory)
        written = append(store, [batch([b"a"])])
        store.sync()
        self.break_disk(volume, fs, operation)
        with pytest.raises(StorageFailedError):
            self.write(store)
        self.break_disk(volume, fs, "")
        assert store.state == "failed"
        for _ in range(2):
            with pytest.raises(StorageFailedError):
                store.sync()
        assert read_all(store)[:1] == written
        store.close(sync=False)

    def break_disk(self, volume: Volume, fs: FailingFileSystem, operation: str) -> None:
        """Let writes or syncs of records fail until further notice.

        A subclass overrides this method if its engine does not write records through the file system of the volume.

        Args:
            operation: "pwritev" for writes, "datasync" for syncs, empty for neither.
        """
        del volume
        fs.broken = operation

    def write(self, store: EpochStore) -> None:
        """Append a batch and sync."""
        append(store, [batch([b"b"])])
        store.sync()

    def test_creation_on_a_full_disk_leaves_nothing(
        self, volume: Volume, fs: FailingFileSystem, directory: Path
    ) -> None:
        """A store's directory gets its final name only when its content is complete."""
        fs.full = True
        with pytest.raises(StorageError):
            self.create(volume, directory)
        assert not directory.exists()
        fs.full = False
        self.create(volume, directory).close()

    # --- closing and opening ---------------------------------------------------------------------------

    def test_closed_store_opens_with_everything(self, volume: Volume, directory: Path, store: EpochStore) -> None:
        """A store that was closed in this process has all of its records."""
        random = Random(5)
        written = [one for _ in range(30) for one in append(store, random_group(random))]
        store.close()
        again = self.reopened(volume, directory)
        assert (again.state, again.is_lost) == ("active", False)
        assert read_all(again) == written
        written += append(again, [batch([b"z"])])
        assert read_all(again) == written
        again.close()

    def test_closed_store_takes_no_writes(self, store: EpochStore) -> None:
        """Every write after `close` is refused."""
        store.close()
        with pytest.raises(StorageFailedError):
            append(store, [batch([b"a"])])
        with pytest.raises(StorageFailedError):
            store.sync()
        assert not store.has_room(64)

    def test_renamed_store_opens_with_everything(self, volume: Volume, directory: Path, store: EpochStore) -> None:
        """The log renames directories of closed stores as their roles change."""
        written = append(store, [batch([b"a"])])
        store.seal()
        store.close(sync=False)
        renamed = directory.with_name("epoch-00000007.fill")
        directory.rename(renamed)
        again = self.reopened(volume, renamed, sealed_end_offset=1)
        assert (again.state, again.directory, read_all(again)) == ("sealed", renamed, written)
        again.close()

    def test_name_of_a_removed_store_is_free(self, volume: Volume, directory: Path, store: EpochStore) -> None:
        """Another store may be created in the directory of a removed one, and has none of its records."""
        append(store, [batch([b"a"])])
        store.close(sync=False)
        remove_store(volume, directory)
        assert not directory.exists()
        other = self.create(volume, directory)
        assert (other.end_offset, read_all(other), other.is_lost) == (0, [], False)
        other.close()

    def test_store_that_ends_elsewhere_than_its_epoch_is_in_limbo(
        self, volume: Volume, directory: Path, store: EpochStore
    ) -> None:
        """A store that does not end at the sealed end offset is in limbo; its valid records can be read."""
        written = append(store, [batch([b"a"])])
        store.close()
        again = self.reopened(volume, directory, sealed_end_offset=5)
        damage = again.damage
        assert damage is not None
        assert (again.state, damage.offset, again.end_offset, read_all(again)) == ("limbo", 1, 1, written)
        with pytest.raises(LimboError):
            append(again, [batch([b"b"])])
        with pytest.raises((DamagedError, ProtocolError)):
            again.reader.read(3, 100, limit_offset=5)
        again.truncate(1)
        assert again.state == "active"
        again.close()

    # --- restarts --------------------------------------------------------------------------------------

    def test_restart_finds_what_was_synced_or_says_that_it_is_lost(
        self, volume: Volume, fs: FailingFileSystem, directory: Path, store: EpochStore
    ) -> None:
        """After a restart, synced records exist if the engine survives it; otherwise a prefix exists, and is lost."""
        written = [one for _ in range(20) for one in append(store, [batch([b"a"], size_bytes=300)])]
        store.sync()
        restarted = self.started(fs)
        again = open_store(restarted, directory, segment_bytes=SEGMENT_BYTES)
        assert again is not None
        if self.engine_of(volume).capabilities.survives_restart:
            assert (read_all(again), again.is_lost) == (written, False)
        else:
            assert (again.start_offset, again.is_lost, again.state) == (0, True, "active")
            assert read_all(again) == written[: len(read_all(again))]
        append(again, [batch([b"b"])])
        again.close()

    def test_restart_finds_a_sealed_store_or_says_that_it_is_lost(
        self, volume: Volume, fs: FailingFileSystem, directory: Path, store: EpochStore
    ) -> None:
        """After a restart, a sealed store is complete or lost, but never shorter."""
        written = append(store, [batch([b"a"]), batch([b"b"])])
        store.seal()
        again = open_store(self.started(fs), directory, segment_bytes=SEGMENT_BYTES, sealed_end_offset=2)
        assert again is not None or not self.engine_of(volume).capabilities.survives_restart
        if again is not None:
            assert (again.state, read_all(again), again.end_digest) == ("sealed", written, store.end_digest)
            assert not again.is_lost
            again.close()

    def test_restart_finds_an_empty_sealed_store(
        self, fs: FailingFileSystem, directory: Path, store: EpochStore
    ) -> None:
        """After a restart, a sealed store without records exists even if the engine loses records."""
        store.seal()
        store.close()
        again = self.reopened(self.started(fs), directory, sealed_end_offset=0)
        assert (again.state, again.end_offset, again.end_digest) == ("sealed", 0, 0)
        again.close()

    # --- missing records -------------------------------------------------------------------------------

    def test_store_that_lacks_records_is_in_limbo_until_its_repair_is_finished(
        self, volume: Volume, fs: FailingFileSystem, directory: Path
    ) -> None:
        """A store created with missing records accepts appends, and is in limbo until its repair is finished."""
        store = self.create(volume, directory, is_lacking=True)
        self.check_repair(store, is_needed=True)
        append(store, [batch([b"a"])])
        store.sync()
        again = self.reopened(self.started(fs), directory)
        self.check_repair(again, is_needed=True)
        append(again, [batch([b"b"])])
        again.finish_repair()
        self.check_repair(again, is_needed=False)
        append(again, [batch([b"c"])])
        again.close()
        last = self.reopened(self.started(fs), directory)
        self.check_repair(last, is_needed=False)
        last.close()

    def check_repair(self, store: EpochStore, *, is_needed: bool) -> None:
        """Check the state of a store.

        Args:
            is_needed: whether the store must be in limbo until its repair is finished.
        """
        assert (store.state, store.is_repairing) == (("limbo", True) if is_needed else ("active", False))

    # --- random operations -----------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(20))
    def test_random_operations_agree_with_a_list(self, volume: Volume, directory: Path, seed: int) -> None:
        """After random operations a store has the same batches as a list that is changed in the same way."""
        random = Random(f"engine suite {seed}")
        start = random.choice([(0, 0), (1000, 77)])
        store = self.create(volume, directory, offset=start[0], digest=start[1])
        model: list[bytes] = []
        for _ in range(120):
            match random.choice(["append"] * 6 + ["sync", "truncate", "roll", "delete", "close", "seal"]):
                case "append":
                    model += append(store, random_group(random))
                case "sync":
                    assert store.sync() == store.end_offset == store.synced_offset
                case "roll":
                    store.roll()
                case "truncate":
                    cut = random.randint(0, len(model))
                    offset = boundaries(model, start)[cut][0]
                    store.truncate(offset)
                    del model[cut:]
                case "delete":
                    if store.segment_count > 1:
                        below = store.oldest_end_offset
                        gone = [one for one in model if unpack_header(one).base_offset < below]
                        store.delete_oldest_segment()
                        start = below, boundaries(gone, start)[-1][1]
                        model = model[len(gone) :]
                case "seal":
                    end_offset = store.end_offset
                    store.seal()
                    store.close(sync=False)
                    store = self.reopened(volume, directory, sealed_end_offset=end_offset)
                    assert store.state == "sealed"
                    store.close(sync=False)
                    store = self.reopened(volume, directory)
                case _:
                    store.close()
                    store = self.reopened(volume, directory)
            assert (store.start_offset, store.start_digest) == start
            assert (store.end_offset, store.end_digest) == boundaries(model, start)[-1]
        assert read_all(store) == model
        store.close()
