from __future__ import annotations

import pytest
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import EPOCH, create, new_disk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.segment.layout import segment_path

PATH = segment_path(EPOCH, 0)


def test_padding_and_marks_between_batches_are_left_out() -> None:
    log = create(new_disk())
    batches = append(log, [batch(b"a"), batch(b"b" * 63)])
    log.sync()
    batches += append(log, [batch(b"c" * 65)])
    result = log.reader.read(0, 100_000, limit_offset=3)
    assert [bytes(one) for one in result.batches] == batches


def test_a_read_costs_one_pread_and_returns_a_copy() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a" * 10), batch(b"b" * 10)])
    result = log.reader.read(0, 100_000, limit_offset=2)
    assert result.batches[0].obj is result.batches[1].obj
    sim.node(PATH).current[:] = bytes(len(sim.node(PATH).current))
    assert [bytes(one) for one in result.batches] == batches


def test_what_is_not_what_the_index_says_is_damage() -> None:
    sim = new_disk()
    log = create(sim)
    append(log, [batch(b"a"), batch(b"b")])
    sim.node(PATH).current[128] ^= 1
    with pytest.raises(DamagedError):
        log.reader.read(0, 100, limit_offset=2)
    with pytest.raises(DamagedError):
        list(log.reader.scan_headers(0))
    assert [header.base_offset for header in log.reader.scan_headers(1)] == [1]
    del sim.node(PATH).current[400:]
    with pytest.raises(DamagedError):
        log.reader.read(1, 100, limit_offset=2)
