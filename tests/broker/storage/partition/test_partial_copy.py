"""Filling a copy: resumed after any crash, never with garbage, and whatever an earlier copy left there."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID, append, batch, read_all, stamp
from tests.broker.storage.decided import decided
from tests.broker.storage.logs import create, new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.io.errors import DiskFullError, DivergedError, StorageFailedError
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.partial_copy import CopyTarget, PartialCopy
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError

EPOCH = decided(Random(1), epochs=2, batches_min=12, batches_max=20)[1]
TARGET = CopyTarget(1, LogPosition(EPOCH.start_offset, 0), LogPosition(EPOCH.end_offset, EPOCH.end_digest))
PATH = HOME / "epoch-00000001.fill"


def begin(sim: SimDisk, target: CopyTarget = TARGET) -> PartialCopy:
    return PartialCopy.begin(
        Disk(fs=sim), HOME, target, topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=SEGMENT_BYTES
    )


def fill_up(fill: PartialCopy) -> None:
    for one in EPOCH.behind(fill.position.offset):
        fill.append([one])
    fill.seal()


def test_copy_is_fetched_batch_by_batch() -> None:
    sim = new_disk()
    fill = begin(sim)
    assert fill.append([]) == fill.position == TARGET.start
    assert fill.position != TARGET.end
    fill.append(EPOCH.batches[:3])
    fill_up(fill)
    assert fill.is_complete
    fill.seal()
    assert read_all(fill.log) == EPOCH.batches
    assert fill.log.segment_count > 2
    fill.log.close()
    assert sim.open_files == 0
    again = begin(sim)
    assert again.is_complete
    assert read_all(again.log) == EPOCH.batches


def test_power_loss_anywhere_loses_only_unsynced_batches() -> None:
    for cut in range(0, 400, 3):
        random = Random(cut)
        sim = new_disk()
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            fill_up(begin(sim))
            assert cut > 60
            return
        sim = sim.power_cut(random)
        # A start removes what was being made.
        if sim.exists(PATH.with_name(PATH.name + ".new")):
            assert not sim.exists(PATH)
        fill = begin(sim)
        found = read_all(fill.log)
        assert found == EPOCH.batches[: len(found)]
        assert fill.position.offset == (unpack_header(found[-1]).end_offset if found else EPOCH.start_offset)
        fill_up(fill)
        assert read_all(begin(sim.power_cut(random)).log) == EPOCH.batches
    raise AssertionError("the fill never ended")


def test_corrupt_batches_are_refused_and_the_copy_continues() -> None:
    fill = begin(new_disk())
    fill.append(EPOCH.batches[:4])
    before = fill.position
    beyond = stamp([batch(records=3)], offset=EPOCH.end_offset - 1, digest=before.digest, epoch=1)
    for wrong in ([EPOCH.batches[5]], [EPOCH.batches[3]], [b"x" * 500], beyond):
        with pytest.raises(ProtocolError) as caught:
            fill.append(wrong)
        assert caught.value.code == pb.CORRUPT_BATCH
        assert fill.position == before
    fill_up(fill)
    assert fill.is_complete


def test_batch_beyond_the_decided_end_is_refused() -> None:
    fill = begin(new_disk())
    fill.append(EPOCH.batches[:-1])
    last = unpack_header(EPOCH.batches[-1]).record_count
    wrong = stamp([batch(records=last + 1)], offset=fill.position.offset, digest=fill.position.digest, epoch=1)
    with pytest.raises(ProtocolError, match="ends at"):
        fill.append(wrong)


def test_content_that_differs_from_the_decision_never_completes() -> None:
    """Whole, sound and chained, but of another history: only the decided digest tells."""
    fill = begin(new_disk())
    fill.append(EPOCH.batches[:-1])
    last = unpack_header(EPOCH.batches[-1]).record_count
    wrong = stamp([batch(b"?", records=last)], offset=fill.position.offset, digest=fill.position.digest, epoch=1)
    with pytest.raises(DivergedError):
        fill.append(wrong)
    fill_up(fill)


def test_short_copy_is_resumed_and_long_copy_truncated() -> None:
    for extra in (False, True):
        sim = new_disk()
        log = create(sim, PATH, epoch=1, start_offset=EPOCH.start_offset)
        held = EPOCH.batches if extra else EPOCH.batches[:5]
        for one in held:
            log.ensure_space(len(one) + 64)
            log.append([one])
        if extra:
            append(log, [batch(b"tail" * 300), batch(b"tail")], epoch=1)
        log.close()
        fill = begin(sim)
        assert read_all(fill.log) == held
        fill_up(fill)


def test_damaged_copy_is_truncated_at_the_damage() -> None:
    sim = new_disk()
    fill_up(begin(sim))
    path = sim.files(PATH, ".seg")[-1]
    held = bytes(sim.node(path).current)
    victim = next(number for number, one in enumerate(EPOCH.batches) if one[:128] in held)
    sim.node(path).current[held.index(EPOCH.batches[victim][:128]) + 130] ^= 1
    sim.unlink(path.with_suffix(".idx"))
    fill = begin(sim)
    assert read_all(fill.log) == EPOCH.batches[:victim]
    fill_up(fill)
    assert read_all(begin(sim).log) == EPOCH.batches


def test_copy_that_differs_from_the_decision_is_set_aside() -> None:
    last = unpack_header(EPOCH.batches[-1])
    for tail in ([batch(b"?", records=last.record_count)], [batch(b"?", records=last.record_count + 1)]):
        sim = new_disk()
        log = create(sim, PATH, epoch=1, start_offset=EPOCH.start_offset)
        for one in EPOCH.batches[:-1]:
            log.ensure_space(len(one) + 64)
            log.append([one])
        append(log, tail, epoch=1)
        log.close()
        fill = begin(sim)
        assert fill.position == TARGET.start
        assert sim.exists(HOME / "epoch-00000001.fill.bad-1")
        fill_up(fill)


def test_copy_without_its_beginning_or_header_is_restarted() -> None:
    sim = new_disk()
    create(sim, PATH, epoch=1, start_offset=EPOCH.start_offset + 1).close()
    assert begin(sim).position == TARGET.start

    sim = new_disk()
    sim.make_dir(PATH)
    assert begin(sim).position == TARGET.start

    sim = new_disk()
    begin(sim).log.close()
    sim.node(sim.files(PATH, ".seg")[0]).current[0] ^= 1
    assert begin(sim).position == TARGET.start
    assert sim.exists(HOME / "epoch-00000001.fill.bad-1")


def test_copy_may_begin_at_the_log_start() -> None:
    sim = new_disk()
    first = unpack_header(EPOCH.batches[2])
    target = CopyTarget(1, LogPosition(first.end_offset, first.digest), TARGET.end)
    fill = begin(sim, target)
    for one in EPOCH.batches[3:]:
        fill.append([one])
    fill.seal()
    assert read_all(begin(sim, target).log) == EPOCH.batches[3:]


def test_full_disk_changes_nothing_and_failed_disk_is_reported() -> None:
    sim = new_disk()
    sim.free_bytes = 100
    with pytest.raises(DiskFullError):
        begin(sim)
    sim.free_bytes = 40_000
    fill = begin(sim)
    sim.free_bytes = 0
    with pytest.raises(DiskFullError):
        fill_up(fill)
    before = fill.position
    sim.free_bytes = None
    assert fill.position == before
    fill_up(fill)

    sim = new_disk()
    fill = begin(sim)
    sim.fail = lambda operation, path: OSError(errno.EIO, "broken") if operation == "write" else None
    with pytest.raises(StorageFailedError, match="broken"):
        fill_up(fill)
