from __future__ import annotations

import errno

import pytest
from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID, batch, stamp
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SECTOR_BYTES, SimDisk

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.segment.active_segment import ActiveSegment, SegmentStart, batch_fields
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.index import load_index
from tidelog_broker.storage.segment.layout import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    begun_path,
    index_path,
)
from tidelog_broker.storage.segment.scan import scan_segment

START = SegmentStart(TOPIC_ID, PARTITION, epoch=0, base_offset=40, start_digest=6, synced_offset=40)


def create(sim: SimDisk) -> ActiveSegment:
    return ActiveSegment.begin(Disk(fs=sim), HOME, START, segment_bytes=SEGMENT_BYTES)


def write(segment: ActiveSegment, body: bytes, *, synced_offset: int) -> None:
    group = stamp([batch(body)], offset=segment.end_offset, digest=segment.end.digest)
    segment.ensure_space(MARK_BYTES + padded(len(group[0])))
    segment.write(group, [batch_fields(one) for one in group], synced_offset)


def test_mark_is_written_before_a_group_if_the_synced_offset_advanced() -> None:
    sim = new_disk()
    segment = create(sim)
    write(segment, b"a", synced_offset=40)
    assert segment.end.position == SEGMENT_HEADER_BYTES + padded(129)
    write(segment, b"b", synced_offset=41)
    write(segment, b"c", synced_offset=41)
    segment.write_mark(41)
    scan = scan_segment(segment.opened.file, segment.header)
    assert (scan.marks, scan.synced_offset, scan.end_offset, scan.stop.kind) == (1, 41, 43, "zero")
    segment.write_mark(43)
    scan = scan_segment(segment.opened.file, segment.header)
    assert (scan.marks, scan.synced_offset, scan.end_position) == (2, 43, segment.end.position)


def test_sealing_frees_space_and_writes_the_index() -> None:
    sim = new_disk()
    segment = create(sim)
    write(segment, b"a", synced_offset=40)
    segment.seal()
    assert segment.opened.file.size() == segment.size_bytes
    index, end = load_index(sim.open_readonly(index_path(segment.path)), nonce=segment.header.nonce)
    assert (list(index.offsets), end) == ([40], segment.end)
    segment._grow_ahead()
    assert segment.opened.file.size() == segment.size_bytes


def test_segment_is_renamed_after_its_header_is_durable() -> None:
    sim = new_disk()
    segment = create(sim)
    assert sim.list_dir(HOME) == ["00000000000000000040.beg"]
    assert not sim.node(begun_path(segment.path)).durable
    write(segment, b"a", synced_offset=40)
    segment.take_name()
    assert sim.list_dir(HOME) == ["00000000000000000040.seg"]
    assert SegmentHeader.unpack(sim.node(segment.path).durable) == segment.header
    assert len(sim.node(segment.path).durable) == SECTOR_BYTES, "what else it holds waits for a sync"


@pytest.mark.parametrize("operation", ["create", "allocate", "write"])
def test_failed_creation_leaves_nothing_and_can_be_retried(operation: str) -> None:
    sim = new_disk()
    sim.fail = lambda what, path: OSError(errno.ENOSPC, "full") if what == operation else None
    with pytest.raises(OSError, match="full"):
        create(sim)
    assert sim.list_dir(HOME) == []
    assert sim.open_files == 0
    sim.fail = lambda what, path: None
    create(sim)


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_segment_is_not_renamed_if_its_header_sync_fails(operation: str) -> None:
    sim = new_disk()
    segment = create(sim)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None
    with pytest.raises(OSError, match="broken"):
        segment.take_name()
    assert sim.list_dir(HOME) == ["00000000000000000040.beg"]


def test_required_bytes_are_allocated_if_a_chunk_does_not_fit() -> None:
    sim = new_disk()
    segment = ActiveSegment.begin(Disk(fs=sim), HOME, START, segment_bytes=10**9)
    held = segment.opened.file.size()
    sim.free_bytes = 1000
    segment.ensure_space(held - SEGMENT_HEADER_BYTES + 1000)
    assert segment.opened.file.size() == held + 1000
    with pytest.raises(OSError, match="no space"):
        segment.ensure_space(held - SEGMENT_HEADER_BYTES + 1001)


@pytest.mark.parametrize("operation", ["create", "write", "rename"])
def test_full_disk_loses_only_the_index_of_a_sealed_segment(operation: str) -> None:
    sim = new_disk()
    segment = create(sim)
    write(segment, b"a", synced_offset=40)
    segment.take_name()
    full = OSError(errno.ENOSPC, "full")
    sim.fail = lambda what, path: full if what == operation and ".idx" in path.suffixes else None
    segment.seal()
    assert sim.list_dir(HOME) == ["00000000000000000040.seg"]
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if ".idx" in path.suffixes else None
    with pytest.raises(OSError, match="broken"):
        segment.seal()
