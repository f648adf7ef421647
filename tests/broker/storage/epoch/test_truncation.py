"""Cutting a log's tail: any end, any crash, and nothing of the tail that comes back later."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import EPOCH, create, new_disk, reopen
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.truncation import kept_part
from tidelog_broker.storage.io.errors import DivergedError, StorageFailedError
from tidelog_broker.storage.segment.index import Index
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES
from tidelog_proto.batch.header import unpack_header


def filled(sim: SimDisk, *, groups: int = 12, synced: bool = True) -> tuple[EpochLog, list[bytes]]:
    """Several segments, groups of one and two batches of one to three records."""
    log = create(sim)
    batches: list[bytes] = []
    for number in range(groups):
        group = [batch(bytes([number]) * (350 + 60 * number), records=number % 3 + 1)]
        if number % 2:
            group.append(batch(b"second", records=2))
        batches += append(log, group)
        if synced:
            log.sync()
    assert log.segment_count > 2
    return log, batches


def ends(batches: list[bytes]) -> list[int]:
    """Every batch boundary, the start first."""
    return [0, *(unpack_header(one).end_offset for one in batches)]


def test_log_can_be_truncated_at_every_boundary_and_appended_to() -> None:
    for synced in (True, False):
        _, model = filled(new_disk())
        for count, end in enumerate(ends(model)):
            sim = new_disk()
            log, batches = filled(sim, synced=synced)
            log.truncate(end)
            kept = batches[:count]
            assert (log.state, log.end_offset, log.synced_offset) == ("active", end, end)
            assert log.end_digest == (unpack_header(kept[-1]).digest if kept else 0)
            assert read_all(log) == kept
            assert read_all(reopen(sim.power_cut(Random(count)))) == kept
            kept += append(log, [batch(b"other" * 200, records=2)])
            log.sync()
            assert read_all(log) == kept
            assert read_all(reopen(sim.power_cut(Random(count)))) == kept
            log.close()
            assert sim.open_files == 0


def test_end_inside_a_batch_changes_nothing() -> None:
    log, batches = filled(new_disk())
    inside = next(end - 1 for end in ends(batches) if end - 1 not in ends(batches) and end)
    for wrong in (inside, log.end_offset + 1):
        with pytest.raises(DivergedError):
            log.truncate(wrong)
    assert read_all(log) == batches
    append(log, [batch()])


def test_truncation_at_the_end_syncs_and_keeps_everything() -> None:
    log, batches = filled(new_disk(), synced=False)
    log.truncate(log.end_offset)
    assert log.synced_offset == log.end_offset
    assert read_all(log) == batches


def test_power_loss_at_every_step_leaves_a_part_of_the_tail_or_none() -> None:
    _, model = filled(new_disk())
    for count in (0, 1, 4, len(model) - 1):
        for cut in range(200):
            sim = new_disk()
            log, batches = filled(sim)
            sim.cut_at = sim.steps + cut
            done = False
            with suppress(PowerCutError):
                log.truncate(ends(model)[count])
                done = True
            again = reopen(sim.power_cut(Random(cut)))
            assert again.state == "active", again.damage
            found = read_all(again)
            assert found == batches[: len(found)]
            assert len(found) >= count
            again.truncate(ends(model)[count])
            assert read_all(again) == batches[:count]
            if done:
                assert len(found) == count
                break
        else:
            raise AssertionError("the cut never ended")


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_truncated_tail_never_reappears(seed: int) -> None:
    """The same batches again, others of the same sizes, or fewer: after any crash, only what was written last."""
    random = Random(seed)
    sim = new_disk()
    log, batches = filled(sim, synced=random.random() < 0.5)
    for _ in range(random.randint(1, 3)):
        count = random.randrange(len(batches))
        log.truncate(ends(batches)[count])
        synced = count
        old, batches = batches[count:], batches[:count]
        sim.cut_at = sim.steps + random.randint(0, 40)
        with suppress(PowerCutError):
            for raw in old[: random.randrange(len(old))]:
                body = raw[128:] if random.random() < 0.5 else random.randbytes(len(raw) - 128)
                again = [batch(body, records=unpack_header(raw).record_count)]
                batches += append(log, again)
                if random.random() < 0.5:
                    log.sync()
                    synced = len(batches)
        sim = sim.power_cut(random)
        log = reopen(sim)
        assert log.state == "active", log.damage
        found = read_all(log)
        assert len(found) >= synced
        assert found[: len(batches)] == batches[: len(found)]
        batches = found
        if not batches:
            batches = append(log, [batch(b"z" * 900)])


def test_rot_in_the_kept_part_is_limbo() -> None:
    """The marks that covered it went with the tail: cutting leaves a new one."""
    _, model = filled(new_disk())
    for count in range(1, len(model)):
        sim = new_disk()
        log, batches = filled(sim)
        log.truncate(ends(model)[count])
        for path in sim.files(EPOCH, ".seg"):
            at = bytes(sim.node(path).current).find(batches[count - 1][:128])
            if at >= 0:
                sim.node(path).current[at + 130] ^= 1
        again = reopen(sim.restart())
        # Where the last segment is empty, its header is what says that the one before it was synced.
        if log.segments[-1].base_offset < log.end_offset:
            assert again.state == "limbo"


def test_truncated_sealed_log_takes_appends() -> None:
    sim = new_disk()
    log, batches = filled(sim)
    log.seal()
    log.truncate(ends(batches)[3])
    assert log.state == "active"
    kept = batches[:3] + append(log, [batch(b"on")])
    log.seal()
    log.close()
    assert read_all(reopen(sim, sealed_end_offset=unpack_header(kept[-1]).end_offset)) == kept


def test_disk_failure_stops_the_log() -> None:
    for nth in range(100):
        sim = new_disk()
        log, batches = filled(sim)
        count = 0

        def fail(operation: str, path: Path, nth: int = nth) -> OSError | None:
            nonlocal count
            count += 1
            return OSError(errno.EIO, "broken") if count > nth else None

        sim.fail = fail
        try:
            log.truncate(ends(batches)[2])
        except StorageFailedError:
            sim.fail = lambda operation, path: None
            assert log.state == "failed"
            with pytest.raises(StorageFailedError):
                log.truncate(ends(batches)[2])
            log.close()
            assert sim.open_files == 0
            again = reopen(sim.restart())
            assert again.state == "active"
            assert read_all(again)[:2] == batches[:2]
        else:
            assert nth > 8
            return
    raise AssertionError("the cut never succeeded")


def test_full_disk_does_not_prevent_truncation() -> None:
    sim = new_disk()
    log, batches = filled(sim)
    sim.fail = lambda operation, path: OSError(errno.ENOSPC, "full") if operation == "allocate" else None
    log.truncate(ends(batches)[2])
    assert read_all(log) == batches[:2]
    assert read_all(reopen(sim.restart())) == batches[:2]


def test_reader_of_a_truncated_tail_gets_out_of_range() -> None:
    log, batches = filled(new_disk())
    headers = log.reader.scan_headers(0)
    next(headers)
    log.truncate(ends(batches)[2])
    assert [bytes(one) for one in log.reader.read(0, 10**6, limit_offset=99).batches] == batches[:2]


def test_kept_part_of_an_index() -> None:
    index = Index()
    index.append(0, SEGMENT_HEADER_BYTES, 200, 5)
    index.append(2, 512, 130, 9)
    assert kept_part(index, 0, 0).end.position == SEGMENT_HEADER_BYTES
    assert kept_part(index, 2, 7).end.position == 512
    assert kept_part(index, 3, 7).end.position == 512 + 192
    assert list(kept_part(index, 2, 7).index.offsets) == [0]
    assert len(index) == 2
