"""Digests at batch boundaries; reading itself is tested with the log that is read."""

from __future__ import annotations

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import EPOCH, create, new_disk, reopen

from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.epoch_log import EpochLog
from tidelog_broker.storage.errors import DamagedError
from tidelog_proto.header import unpack_header


def filled(log: EpochLog) -> list[bytes]:
    batches: list[bytes] = []
    for number in range(20):
        batches += append(log, [batch(bytes([number]) * 50 * number, records=3), batch(b"x", records=number % 2 + 1)])
        log.sync()
    return batches


def test_a_digest_is_known_at_each_boundary_and_nowhere_else() -> None:
    sim = new_disk()
    log = create(sim, start_offset=100)
    batches = filled(log)
    assert log.segment_count > 3
    expected = {unpack_header(one).end_offset: unpack_header(one).digest for one in batches} | {100: 0}
    for view in (log, reopen(sim.restart())):
        for offset in range(98, view.end_offset + 3):
            assert view.digest_at(offset) == expected.get(offset)


def test_after_retention_the_digest_at_the_new_start_is_still_known() -> None:
    log = create(new_disk())
    batches = filled(log)
    log.delete_before(60)
    assert log.start_offset > 0
    before = next(one for one in batches if unpack_header(one).end_offset == log.start_offset)
    assert log.digest_at(log.start_offset) == unpack_header(before).digest
    assert log.digest_at(0) is None


def test_a_copy_may_begin_behind_the_start_of_its_epoch() -> None:
    log = EpochLog.create(
        Disk(fs=new_disk()),
        EPOCH,
        topic_id=bytes(16),
        partition=0,
        epoch=0,
        start_offset=7,
        start_digest=123,
        segment_bytes=4096,
    )
    assert log.digest_at(7) == 123
    batches = append(log, [batch(b"x")])
    assert read_all(log) == batches


def test_a_header_that_does_not_check_is_damage() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a"), batch(b"b"), batch(b"c")])
    path = sim.files(EPOCH, ".seg")[0]
    sim.node(path).current[bytes(sim.node(path).current).find(batches[0][:128]) + 121] ^= 1
    with pytest.raises(DamagedError):
        log.digest_at(1)
    assert log.digest_at(2) == unpack_header(batches[1]).digest
