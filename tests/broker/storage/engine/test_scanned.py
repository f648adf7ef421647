"""A store that is only read by offset has everything that one with indexes has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import create, new_disk

from tidelog_broker.storage.engine import scanned
from tidelog_broker.storage.engine.reading import FoundBatches, Part
from tidelog_broker.storage.engine.scanned import BatchesExtent, ScannedReading
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_proto.batch.header import unpack_header


class Scanned(ScannedReading):
    """Reads a log by `read` alone."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log

    def parts(self) -> Sequence[Part]:
        return self._log.segments

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        return self._log.reader.read(offset, max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)

    def digest_at(self, offset: int) -> int | None:
        return self._log.reader.digest_at(offset)

    def batch_start(self, offset: int) -> int | None:
        return self._log.reader.batch_start(offset)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> EpochLog:
    monkeypatch.setattr(scanned, "SCANNED_BYTES", 900)
    log, random = create(new_disk()), Random(8)
    for _ in range(60):
        append(log, [batch(random.randbytes(300), records=random.randint(1, 3), timestamp_us=random.randint(1, 99))])
    assert log.segment_count > 3
    return log


def read_extents(reader: ScannedReading, offset: int, limit_offset: int) -> list[bytes]:
    return [bytes(one) for extent in reader.extents(offset, limit_offset) for one in extent.read(0, extent.stop)]


def test_extents_have_each_batch_of_the_range_once(log: EpochLog) -> None:
    everything = [bytes(one) for one in log.reader.read(0, 1 << 20, limit_offset=log.end_offset).batches]
    for offset, limit in ((0, log.end_offset), (17, log.end_offset), (17, 44), (log.end_offset, log.end_offset)):
        wanted = [one for one in everything if offset < unpack_header(one).end_offset <= limit]
        assert read_extents(Scanned(log), offset, limit) == wanted
    newest_first = [
        bytes(one)
        for extent in Scanned(log).extents_reversed(44)
        for one in reversed(extent.read(extent.first, extent.stop))
    ]
    assert newest_first[::-1] == [one for one in everything if unpack_header(one).end_offset <= 44]


def test_headers_and_times_are_those_of_the_log(log: EpochLog) -> None:
    reader = Scanned(log)
    for offset in range(0, log.end_offset + 1, 7):
        assert list(reader.scan_headers(offset)) == list(log.reader.scan_headers(offset))
        for time_us in (1, 50, 99, 100):
            assert reader.find_by_time(time_us, offset) == log.reader.find_by_time(time_us, offset)


def test_extent_tells_offsets_and_sizes(log: EpochLog) -> None:
    extent = next(Scanned(log).extents(0, log.end_offset))
    headers = [unpack_header(extent.head(slot)) for slot in range(extent.stop)]
    assert [extent.offset_of(slot) for slot in range(extent.stop + 1)] == [
        *(header.base_offset for header in headers),
        headers[-1].end_offset,
    ]
    assert [extent.length_of(slot) for slot in range(extent.stop)] == [header.length for header in headers]
    assert extent.span_bytes(0, extent.stop) == sum(header.length for header in headers)
    assert extent.slots_below(headers[-1].base_offset) == extent.stop - 1
    assert extent.place_of(1) == (log.segments[0].path, 1)


@pytest.mark.parametrize("newest", [False, True])
def test_lookup_without_an_index_names_all_batches_in_turn(newest: bool) -> None:
    log = create(new_disk())
    append(log, [batch() for _ in range(10)])
    views = log.reader.read(0, 1 << 20, limit_offset=10).batches
    extent = BatchesExtent(log.directory, views)
    first, stop, named = 0, 10, list[int]()
    while first < stop:
        found = extent.find("key", 7, first, stop, 3, newest=newest)
        assert len(found.slots) <= 3
        named += found.slots
        first, stop = (first, found.first) if newest else (found.stop, stop)
    assert sorted(named) == list(range(10))
