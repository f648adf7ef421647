"""Reading segments again finds what has rotted in them, a stretch at a time."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.build import append
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import keyed_batch
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.reading import Scrubbed, ScrubPart
from tidelog_broker.storage.epoch.segment_part import SegmentPart
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.scrub import is_held, parts_of
from tidelog_broker.storage.segment.index import SegmentEnd


def long_log(sim: SimDisk) -> PartitionLog:
    """Two epochs of several segments each; the newest segment is open."""
    log, random = open_partition(sim), Random(3)
    for epoch in range(2):
        log.start_epoch(epoch, log.end_offset)
        for number in range(60):
            append(log, [keyed_batch([(b"%d" % number, random.randbytes(300))])], epoch=epoch)
        log.sync()
    assert all(len(held.segments) > 2 for held in log.epochs)
    return log


def position(result: Scrubbed) -> int:
    return result.end.position if isinstance(result.end, SegmentEnd) else 0


def whole(sim: SimDisk, part: ScrubPart, *, bytes_max: int = 1000) -> tuple[Scrubbed, int]:
    """Read a segment to its end; return the last stretch and how many there were."""
    one, count = Scrubbed(None, 0, is_done=False), 0
    while not one.is_done:
        before = position(one)
        one = part.scrub(sim, one.end, bytes_max)
        assert one.size_bytes == position(one) - before
        count += 1
    return one, count


def test_all_but_the_active_segment_is_scrubbed() -> None:
    sim = new_disk()
    log = long_log(sim)
    parts = parts_of(log)
    segments = [(held.epoch, segment.path) for held in log.epochs for segment in held.segments]
    assert [(part.epoch, part.path) for part in parts] == segments[:-1]
    for part in parts:
        one, count = whole(sim, part)
        assert (one.damage, is_held(log, part)) == ("", True)
        assert count > 2, "a stretch at a time"
        assert whole(sim, part, bytes_max=1 << 20)[1] == 1


@pytest.mark.parametrize("at", [70, 400, -30])
def test_flipped_bit_is_found_anywhere(at: int) -> None:
    sim = new_disk()
    log = long_log(sim)
    for part in parts_of(log):
        data = sim.node(part.path).current
        used = len(bytes(data).rstrip(b"\0"))
        data[at if at > 0 else used + at] ^= 4
        assert str(part.path) in part.scrub(sim, None, 1 << 20).damage


def test_truncated_or_unreadable_segment_is_damage_and_deleted_one_is_not() -> None:
    sim = new_disk()
    first, second, third, *_ = parts_of(long_log(sim))
    del sim.node(first.path).current[832:]
    assert "expected" in first.scrub(sim, None, 1 << 20).damage
    sim.node(second.path).current[:4] = b"what"
    assert "cannot be read" in second.scrub(sim, None, 1 << 20).damage
    sim.unlink(third.path)
    with pytest.raises(FileNotFoundError):
        third.scrub(sim, None, 1 << 20)


def test_deleted_segment_is_not_held() -> None:
    log = long_log(new_disk())
    (first, *_, last) = parts_of(log)
    assert isinstance(last, SegmentPart)
    log.delete_before(last.end_offset)
    assert not is_held(log, first)
