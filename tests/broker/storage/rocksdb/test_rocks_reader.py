"""Damage that readers find, and deletions while they read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.stand import Stand, sorted_tables

from tidelog.testing.engine_batches import batch, read_all
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def test_damaged_batch_is_found_by_its_checksum(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "node")
    stand.create()
    while stand.stores[0].segment_count < 4:
        stand.append([batch([b"k"], size_bytes=1500)])
    stand.sync()
    stand.stores[0].close()
    path = sorted_tables(stand)[0]
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    again = Stand(tmp_path / "node")
    store = again.open()
    with pytest.raises(DamagedError, match="is damaged: Corruption"):
        read_all(store)
    damaged = [part.scrub(again.volume.fs, None, 1 << 20).damage for part in store.scrub_parts(is_newest=True)]
    assert any("Corruption" in one for one in damaged)
    again.close()


def test_scrub_of_a_sound_part_covers_all_of_it(stand: Stand) -> None:
    store = stand.create()
    while store.segment_count < 3:
        stand.append([batch([b"k"], size_bytes=300)])
    for part, found in zip(store.segments, store.scrub_parts(is_newest=True), strict=False):
        start, size_bytes, is_done = None, 0, False
        while not is_done:
            scrubbed = found.scrub(stand.volume.fs, start, 500)
            assert not scrubbed.damage
            start, size_bytes, is_done = scrubbed.end, size_bytes + scrubbed.size_bytes, scrubbed.is_done
        assert size_bytes == part.size_bytes
    assert len(store.scrub_parts(is_newest=True)) == 2


def test_scan_of_deleted_records_is_out_of_range(stand: Stand) -> None:
    """A scan may have planned to read records that retention deletes meanwhile; they are not damaged."""
    store = stand.create()
    while store.segment_count < 3:
        stand.append([batch([b"k"], size_bytes=300)])
    extent = next(store.reader.extents(0, store.end_offset))
    part = next(iter(store.scrub_parts(is_newest=True)))
    store.delete_oldest_segment()
    with pytest.raises(ProtocolError) as refused:
        extent.read(extent.first, extent.stop)
    assert (refused.value.code, refused.value.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, store.start_offset)
    with pytest.raises(OSError, match="out of range"):
        part.scrub(stand.volume.fs, None, 1 << 20)
