"""After a failed sync the covered bytes are readable and may not be durable; rewritten bytes are durable."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch, needed, read_all, stamp
from tests.broker.storage.logs import EPOCH, create, failing, new_disk, open_partition, reopen
from tests.broker.storage.sim_disk import SECTOR_BYTES, PowerCutError, SimDisk

from tidelog_broker.storage.epoch.rewrite import rewrite_range
from tidelog_broker.storage.io.errors import StorageError, StorageFailedError
from tidelog_broker.storage.partition.partition_dirs import partition_dir_name
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import segment_path
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment

PATH = segment_path(EPOCH, 0)


def fail_one(sim: SimDisk, number: int = 0) -> None:
    sim.fail = failing({"sync"}, number)


# ------------------------------------------------------------------------------------------ the simulated disk


@pytest.mark.parametrize("seed", range(20))
def test_simulated_disk_keeps_failed_writes_readable_until_power_loss(seed: int) -> None:
    sim = new_disk()
    path = HOME / "file"
    file = sim.open(path, create=True)
    file.pwritev([b"a" * 2 * SECTOR_BYTES], 0)
    file.datasync()
    sim.sync_dir(HOME)
    file.pwritev([b"b" * 2 * SECTOR_BYTES], 0)
    fail_one(sim)
    with pytest.raises(OSError, match="broken"):
        file.datasync()
    sim = sim.restart()
    file = sim.open(path)
    file.datasync()
    assert file.pread(2 * SECTOR_BYTES, 0) == b"b" * 2 * SECTOR_BYTES
    assert sim.node(path).durable == b"a" * 2 * SECTOR_BYTES
    file.pwritev([b"b" * 10], SECTOR_BYTES)
    file.datasync()
    assert (sim.node(path).lacks(SECTOR_BYTES), list(sim.node(path).lost)) == (True, [0])
    content = sim.power_cut(Random(seed)).node(path).current
    assert bytes(content[:SECTOR_BYTES]) in {b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES}
    assert bytes(content[SECTOR_BYTES:]) == b"b" * SECTOR_BYTES, "rewritten bytes are durable"


# ------------------------------------------------------------------------------------------ rewriting


def test_rewritten_range_is_unchanged_and_durable() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a" * 700), batch(b"b" * 700)])
    fail_one(sim)
    with pytest.raises(StorageFailedError):
        log.sync()
    sim = sim.restart()
    with_pages = bytes(sim.node(PATH).current)
    file = sim.open(PATH)
    header = read_segment_header(file)
    found = scan_segment(file, header)
    rewrite_range(file, header, found.synced_end, found.end)
    file.datasync()
    assert not sim.node(PATH).lost
    assert bytes(sim.node(PATH).durable) == with_pages
    assert read_all(reopen(sim.power_cut(Random(1)))) == batches


def test_range_that_changed_between_reads_is_an_error() -> None:
    sim = new_disk()
    log = create(sim)
    append(log, [batch(b"a" * 700), batch(b"b" * 700)])
    file = sim.open(PATH)
    header = read_segment_header(file)
    found = scan_segment(file, header)
    sim.node(PATH).current[900] ^= 1
    with pytest.raises(OSError, match="changed between two reads"):
        rewrite_range(file, header, found.synced_end, found.end)
    # Short: the pages went with the file's end.
    file.truncate(800)
    with pytest.raises(OSError, match="changed between two reads"):
        rewrite_range(file, header, found.synced_end, found.end)
    rewrite_range(file, header, found.end, found.end)
    assert SegmentEnd(2, found.end_position, found.end_digest) == found.end


def test_only_the_range_without_a_mark_is_rewritten() -> None:
    sim = new_disk()
    log = create(sim, segment_bytes=100_000)
    for number in range(10):
        append(log, [batch(bytes([number]) * 900)])
        log.sync()
    sim.node(PATH).lost = {0: [b""], (log.size_bytes - 1) // SECTOR_BYTES: [b""]}
    reopen(sim.restart())
    assert list(sim.node(PATH).lost) == [0], "the last group is written, the first one is not"


# ------------------------------------------------------------------------------------------ a log over restarts


class Restarts:
    """A partition's log over several restarts; batches that were reported as synced must survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sim = new_disk()
        self.written: list[bytes] = []
        self.synced = 0

    def write(self, groups: int = 5) -> None:
        """Open, append and sync; ends where the disk fails or the power goes, or with the last group."""
        log = open_partition(self.sim)
        assert log.limbo is None
        found = read_all(log)
        assert len(found) >= self.synced, "synced batches are gone"
        assert found == self.written[: len(found)], "the log has batches that were never appended"
        assert not lost(self.sim), "an opened log is durable"
        self.written, self.synced = found, len(found)
        if log.active is None:
            log.start_epoch(0, 0)
        for _ in range(groups):
            group = [batch(self.random.randbytes(self.random.choice([40, 300, 900])))]
            log.ensure_space(needed(group))
            stamp(group, offset=log.end_offset, digest=log.end_digest)
            # It counts as written before it is: the disk may fail in the middle of the write.
            self.written += map(bytes, group)
            log.append(group)
            if self.random.random() < 0.7:
                log.sync()
                self.synced = len(self.written)

    def end(self, *, power: bool) -> None:
        self.sim = self.sim.power_cut(self.random) if power else self.sim.restart()


def lost(sim: SimDisk) -> list[str]:
    """Return the segments of the open epoch of which the disk may lack what a start has read."""
    directory = HOME / partition_dir_name("events", TOPIC_ID, PARTITION) / EPOCH.name
    paths = sim.files(directory, ".seg") if sim.exists(directory) else []
    return [str(path) for path in paths if sim.node(path).lost]


@pytest.mark.parametrize("operations", [{"sync"}, {"sync_dir"}, {"write", "truncate", "rename", "create", "allocate"}])
def test_disk_failure_anywhere_and_restarts_lose_nothing_synced(operations: set[str]) -> None:
    for number in range(25):
        for seed in range(3):
            restarts = Restarts(seed)
            restarts.write()
            restarts.end(power=False)
            # The next start may fail in the middle of making good what the first failure left.
            for at in (number, restarts.random.randrange(6)):
                restarts.sim.fail = failing(operations, at)
                with suppress(StorageError, OSError):
                    restarts.write()
                restarts.end(power=False)
            restarts.write()
            restarts.end(power=True)
            restarts.write()


def test_kill_at_each_step_leaves_only_durable_names() -> None:
    for cut in range(60):
        for seed in range(4):
            restarts = Restarts(seed)
            restarts.sim.cut_at = cut
            with suppress(PowerCutError):
                restarts.write(12)
            restarts.end(power=False)
            restarts.write(1)
            for power_cut in range(8):
                found = read_all(open_partition(restarts.sim.power_cut(Random(power_cut))))
                assert restarts.synced <= len(found), f"cut at {cut}, seed {seed}"
                assert found == restarts.written[: len(found)]


@pytest.mark.parametrize("power", [False, True])
def test_crash_at_each_step_of_a_restart_after_a_failure_loses_nothing_synced(power: bool) -> None:
    for cut in range(30):
        for seed in range(3):
            restarts = Restarts(seed)
            restarts.sim.fail = failing({"sync"}, 4 + seed)
            with suppress(StorageError):
                restarts.write(12)
            restarts.end(power=False)
            restarts.sim.cut_at = cut
            with suppress(PowerCutError):
                restarts.write()
            restarts.end(power=power)
            restarts.write()
            restarts.end(power=True)
            restarts.write()


def test_full_disk_refuses_the_start_and_loses_nothing() -> None:
    restarts = Restarts(1)
    restarts.sim.fail = failing({"sync"}, 5)
    with pytest.raises(StorageFailedError):
        restarts.write(12)
    restarts.end(power=False)
    full = OSError(errno.ENOSPC, "full")
    restarts.sim.fail = lambda operation, path: full if operation == "write" else None
    with pytest.raises(StorageFailedError, match="check the disk"):
        restarts.write()
    restarts.end(power=False)
    restarts.write()
    restarts.end(power=True)
    restarts.write()


@pytest.mark.parametrize("seed", range(10))
def test_prefix_before_damage_is_rewritten(seed: int) -> None:
    """A bad header is damage without a mark that covers what lies in front of it."""
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    while log.segment_count < 3:
        batches += append(log, [batch(b"x" * 900)])
    log.sync_names()
    for path in sim.files(EPOCH, ".seg"):
        sim.node(path).sync_failed()
    sim.node(sim.files(EPOCH, ".seg")[-1]).current[50] ^= 1
    log = reopen(sim.restart())
    assert log.state == "limbo"
    if seed % 2:
        log.truncate_to_valid_prefix()
    else:
        log.truncate(log.end_offset)
    kept = read_all(log)
    assert kept == batches[: len(kept)]
    assert read_all(reopen(sim.power_cut(Random(seed)))) == kept
