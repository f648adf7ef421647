from __future__ import annotations

from dataclasses import replace

import pytest
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import create, new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import index_path
from tidelog_broker.storage.segment.sealed_segment import SealedSegment, peek_index_end, try_load_index


def sealed() -> tuple[SimDisk, SealedSegment]:
    sim = new_disk()
    log = create(sim)
    append(log, [batch(b"a" * 300), batch(b"b" * 300, records=4)])
    log.seal()
    (segment,) = log.segments
    assert isinstance(segment, SealedSegment)
    return sim, segment


def test_valid_index_is_used_and_invalid_one_rebuilt() -> None:
    sim, segment = sealed()
    whole = bytes(sim.node(index_path(segment.path)).current)
    assert list(segment.open(Disk(fs=sim)).index.offsets) == [0, 1]
    sim.node(index_path(segment.path)).current[80] ^= 1
    assert try_load_index(sim, segment.path, segment.header) is None
    assert list(segment.open(Disk(fs=sim)).index.offsets) == [0, 1]
    assert bytes(sim.node(index_path(segment.path)).current) == whole


def test_segment_with_a_wrong_end_is_damaged() -> None:
    sim, segment = sealed()
    before = sim.open_files
    with pytest.raises(DamagedError, match="ends at offset 5, but the log continues at 9"):
        replace(segment, end_offset=9).open(Disk(fs=sim))
    sim.unlink(index_path(segment.path))
    sim.node(segment.path).current[300] ^= 1
    with pytest.raises(DamagedError, match="CRC32C"):
        segment.open(Disk(fs=sim))
    assert sim.open_files == before


def test_peek_returns_the_end_or_none() -> None:
    sim, segment = sealed()
    end = peek_index_end(sim, segment.path, segment.header)
    assert end is not None
    assert (end.offset, end.digest, end.position) == (5, segment.end_digest, segment.size_bytes)
    sim.node(index_path(segment.path)).current[3] ^= 1
    assert peek_index_end(sim, segment.path, segment.header) is None
    sim.unlink(index_path(segment.path))
    assert peek_index_end(sim, segment.path, segment.header) is None
