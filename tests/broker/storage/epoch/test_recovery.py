"""Recovery: the log against a model with the power cut anywhere, cuts at every byte, rot before and after the mark."""

from __future__ import annotations

import errno
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import append, batch, needed, read_all, stamp
from tests.broker.storage.logs import EPOCH, create, new_disk, reopen
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.repair_markers import has_marker, write_marker
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES, index_path, segment_path


class Story:
    """A log and what is known of it: all that was appended, and how much of it was reported as synced."""

    def __init__(self, random: Random, *, always: bool, mapped: bool = False) -> None:
        self.random = random
        self.always = always
        self.sim = new_disk()
        self.sim.is_mapped = mapped
        self.log = create(self.sim)
        self.appended: list[bytes] = []
        self.synced = 0

    def write_some(self, groups: int) -> None:
        """Append and sync; the power may go at any step."""
        for _ in range(groups):
            group = [
                batch(self.random.randbytes(self.random.choice([1, 40, 300, 900])), records=self.random.randint(1, 3))
                for _ in range(self.random.randint(1, 3))
            ]
            self.log.ensure_space(needed(group))
            stamped = stamp(group, offset=self.log.end_offset, digest=self.log.end_digest)
            # It counts as appended before it is: the power may go in the middle of the write.
            self.appended += [bytes(one) for one in stamped]
            self.log.append(stamped)
            if self.always or self.random.random() < 0.3:
                self.log.sync()
                self.synced = len(self.appended)

    def recover(self) -> None:
        self.sim = self.sim.power_cut(self.random)
        self.log = reopen(self.sim)
        assert self.log.state == "active", self.log.damage
        found = read_all(self.log)
        assert len(found) >= self.synced, "synced batches are gone"
        assert found == self.appended[: len(found)], "the log has batches that were never appended"
        self.appended = found
        self.synced = len(found)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    always=st.booleans(),
    mapped=st.booleans(),
    cuts=st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_power_loss_anywhere_loses_nothing_synced_and_invents_nothing(
    seed: int, always: bool, mapped: bool, cuts: list[int]
) -> None:
    story = Story(Random(seed), always=always, mapped=mapped)
    for cut in cuts:
        story.sim.cut_at = story.sim.steps + cut
        with suppress(PowerCutError):
            story.write_some(groups=20)
        story.recover()
    story.write_some(groups=3)
    assert read_all(story.log) == story.appended


@pytest.mark.parametrize("mapped", [False, True])
def test_power_loss_at_each_step(*, mapped: bool) -> None:
    steps = Story(Random(1), always=True, mapped=mapped)
    steps.write_some(groups=12)
    for cut in range(steps.sim.steps):
        story = Story(Random(1), always=True, mapped=mapped)
        story.sim.cut_at = cut
        with suppress(PowerCutError):
            story.write_some(groups=12)
        story.recover()


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_power_loss_during_recovery_is_recovered(seed: int) -> None:
    random = Random(seed)
    story = Story(random, always=False)
    story.sim.cut_at = story.sim.steps + random.randint(1, 50)
    with suppress(PowerCutError):
        story.write_some(groups=20)
    for cut in range(random.randint(1, 6)):
        story.sim = story.sim.power_cut(random)
        story.sim.cut_at = cut
        with suppress(PowerCutError):
            reopen(story.sim)
    story.recover()


def three_groups(*, synced: bool = True) -> tuple[SimDisk, list[bytes]]:
    """A killed log of three groups of two batches, each synced before the next."""
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    for number in range(3):
        batches += append(log, [batch(bytes([65 + number]) * 90), batch(bytes([97 + number]) * 70, records=2)])
        if synced:
            log.sync()
    return sim, batches


def segment(sim: SimDisk) -> bytearray:
    return sim.node(segment_path(EPOCH, 0)).current


def test_truncation_at_every_byte_of_the_last_group_leaves_whole_batches() -> None:
    sim, batches = three_groups()
    content = bytes(segment(sim))
    start = content.index(batches[4][:128])
    end = start + padded(len(batches[4])) + len(batches[5])
    for cut in range(start, end + 1):
        sim.node(segment_path(EPOCH, 0)).current = bytearray(content[:cut].ljust(len(content), b"\0"))
        log = reopen(sim.restart())
        whole = 4 + (cut >= start + len(batches[4])) + (cut >= end)
        # The bytes that the cut took may have been zero anyway.
        assert read_all(log) == batches[: len(read_all(log))]
        assert len(read_all(log)) >= whole, f"cut at {cut - start}"
        assert log.state == "active"


def test_file_truncated_inside_the_last_group_is_recovered() -> None:
    sim, batches = three_groups()
    content = bytes(segment(sim))
    start = content.index(batches[4][:128])
    for cut in range(start, start + padded(len(batches[4])) + len(batches[5]), 7):
        again = sim.restart()
        again.node(segment_path(EPOCH, 0)).current = bytearray(content[:cut])
        log = reopen(again)
        assert read_all(log) == batches[: len(read_all(log))]
        assert log.end_offset in {6, 7}
        append(log, [batch(b"next")])


def test_rot_before_the_mark_is_limbo_and_nothing_is_changed() -> None:
    sim, batches = three_groups()
    content = bytes(segment(sim))
    for number in range(4):
        at = content.index(batches[number][:128])
        for byte in (0, 4, 13, 75, 121, 130, len(batches[number]) - 1):
            rotten = bytearray(content)
            rotten[at + byte] ^= 0x10
            sim.node(segment_path(EPOCH, 0)).current = bytearray(rotten)
            log = reopen(sim.restart())
            assert log.state == "limbo"
            assert log.damage is not None
            assert (log.damage.position, log.damage.synced_offset) == (at, 6)
            assert read_all(log) == batches[:number]
            assert bytes(segment(sim)) == rotten
            with pytest.raises(DamagedError, match="damaged"):
                log.reader.read(log.end_offset + 1, 100, limit_offset=log.end_offset + 2)


def test_zeroes_in_place_of_a_synced_batch_are_limbo() -> None:
    sim, batches = three_groups()
    at = segment(sim).index(batches[1][:128])
    segment(sim)[at : at + 512] = bytes(512)
    assert reopen(sim.restart()).state == "limbo"


def test_rot_in_the_last_synced_group_is_truncated_like_a_torn_write() -> None:
    sim, batches = three_groups()
    segment(sim)[segment(sim).index(batches[4][:128]) + 130] ^= 1
    log = reopen(sim.restart())
    assert log.state == "active"
    assert read_all(log) == batches[:4]


def test_rot_in_the_last_group_is_limbo_after_a_clean_stop() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a" * 100)])
    log.close()
    segment(sim)[segment(sim).index(batches[0][:128]) + 130] ^= 1
    assert reopen(sim.restart()).state == "limbo"


def test_valid_batches_after_a_torn_one_never_reappear() -> None:
    sim, batches = three_groups(synced=False)
    first = bytes(segment(sim))
    at = first.index(batches[2][:128])
    segment(sim)[at + 130] ^= 1
    log = reopen(sim.restart())
    assert read_all(log) == batches[:2]
    assert not segment(sim)[log.size_bytes :].strip(b"\0")
    # The torn batch again: the bytes after it would have continued the chain.
    append(log, [batch(b"B" * 90)])
    log.close()
    assert read_all(reopen(sim.restart())) == batches[:3]


def test_kept_prefix_is_synced_before_it_is_readable() -> None:
    sim, batches = three_groups(synced=False)
    log = reopen(sim.restart())
    assert read_all(log) == batches
    assert log.synced_offset == log.end_offset
    again = reopen(sim.power_cut(Random(5)))
    assert read_all(again) == batches


def test_rot_in_an_older_synced_segment_is_found_by_its_reader_and_kept() -> None:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    while log.segment_count < 4:
        batches += append(log, [batch(b"x" * 900)])
        log.sync()
    path = segment_path(EPOCH, 0)
    sim.node(path).current[SEGMENT_HEADER_BYTES + 140] ^= 1
    sim.unlink(index_path(path))
    log = reopen(sim.restart())
    assert log.state == "active"
    with pytest.raises(DamagedError):
        read_all(log)
    assert log.end_offset == len(batches)


def test_damage_in_an_unsynced_older_segment_truncates_there() -> None:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    while log.segment_count < 3:
        batches += append(log, [batch(b"x" * 900)])
    sim.node(segment_path(EPOCH, 0)).current[segment(sim).index(batches[1][:128]) + 140] ^= 1
    log = reopen(sim.restart())
    assert (log.state, log.segment_count) == ("active", 1)
    assert read_all(log) == batches[:1]


def test_bad_segment_header_is_limbo() -> None:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    while log.segment_count < 3:
        batches += append(log, [batch(b"x" * 900)])
        log.sync()
    newest = sim.files(EPOCH, ".seg")[-1]
    sim.node(newest).current[50] ^= 1
    again = reopen(sim.restart())
    assert again.state == "limbo"
    assert read_all(again) == batches[: again.end_offset]
    assert again.damage is not None
    assert again.damage.path == newest
    sim.node(segment_path(EPOCH, 0)).current[50] ^= 1
    with pytest.raises(DamagedError):
        reopen(sim.restart())


def unsynced_segments(count: int) -> tuple[SimDisk, EpochLog, list[bytes]]:
    """A log of `count` segments, none of whose headers declares a record of the last four synced."""
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    while log.segment_count < count:
        batches += append(log, [batch(b"x" * 900)])
    return sim, log, batches


@pytest.mark.parametrize("end", ["sealed", "closed", "killed"])
@pytest.mark.parametrize("count", [3, 4, 7])
def test_bad_batch_before_a_bad_segment_header_is_limbo_and_nothing_is_changed(count: int, end: str) -> None:
    sim, log, batches = unsynced_segments(count)
    log.sync()
    if end == "sealed":
        log.seal()
    if end != "killed":
        log.close()
    paths = sim.files(EPOCH, ".seg")
    sim.node(paths[-1]).current[50] ^= 1
    broken = int(paths[-3].stem) + 1
    content = sim.node(paths[-3]).current
    content[content.index(batches[broken][:128]) + 140] ^= 1
    before = {path: bytes(sim.node(path).current) for path in paths}
    again = reopen(sim.restart(), sealed_end_offset=len(batches) if end == "sealed" else None)
    assert (again.state, again.end_offset) == ("limbo", broken)
    assert again.damage is not None
    assert (again.damage.path, again.damage.offset) == (paths[-3], broken)
    assert paths[-1].name in again.damage.reason
    assert read_all(again) == batches[:broken]
    assert {path: bytes(sim.node(path).current) for path in sim.files(EPOCH, ".seg")} == before
    again.truncate_to_valid_prefix()
    append(again, [batch(b"x" * 900)])
    again.finish_repair()
    again.close()
    assert read_all(reopen(sim.restart()))[:broken] == batches[:broken]


@pytest.mark.parametrize("sealed", [False, True])
def test_repair_marker_stays_while_a_segment_header_is_bad(*, sealed: bool) -> None:
    sim, log, batches = unsynced_segments(3)
    log.close()
    paths = sim.files(EPOCH, ".seg")
    sim.node(paths[2]).current[50] ^= 1
    sim.node(paths[0]).current[SEGMENT_HEADER_BYTES + 140] ^= 1
    write_marker(sim, EPOCH)
    assert reopen(sim.restart(), sealed_end_offset=len(batches) if sealed else None).state == "limbo"
    assert has_marker(sim, EPOCH)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_segment_missing_where_no_mark_covers_it_is_limbo(count: int) -> None:
    sim, log, batches = unsynced_segments(count)
    log.sync()
    paths = sim.files(EPOCH, ".seg")
    sim.unlink(paths[-2])
    again = reopen(sim.restart())
    assert again.state == "limbo"
    assert read_all(again) == batches[: int(paths[-2].stem)]
    assert sim.files(EPOCH, ".seg") == [*paths[:-2], paths[-1]]


def test_a_segment_missing_in_the_middle_is_limbo() -> None:
    sim = new_disk()
    log = create(sim)
    while log.segment_count < 4:
        append(log, [batch(b"x" * 900)])
        log.sync()
    sim.unlink(sim.files(EPOCH, ".seg")[1])
    assert reopen(sim.restart()).state == "limbo"


def test_empty_directory_and_unreadable_disk_are_errors(tmp_path: Path) -> None:
    sim = new_disk()
    sim.make_dir(EPOCH)
    with pytest.raises(DamagedError, match="no segment"):
        reopen(sim)
    sim, _ = three_groups()
    sim.fail = lambda operation, path: OSError(errno.EIO, "broken") if operation == "sync" else None
    with pytest.raises(StorageFailedError, match="check the disk"):
        reopen(sim)


def test_sealed_epoch_must_end_at_its_decided_end() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a"), batch(b"b")])
    log.seal()
    log.close()
    assert reopen(sim, sealed_end_offset=2).state == "sealed"
    sim.unlink(index_path(segment_path(EPOCH, 0)))
    with closing(reopen(sim, sealed_end_offset=2)) as again:
        assert read_all(again) == batches
    sim.unlink(index_path(segment_path(EPOCH, 0)))
    segment(sim)[segment(sim).index(batches[1][:128]) + 128] ^= 1
    broken = reopen(sim, sealed_end_offset=2)
    assert broken.state == "limbo"
    assert read_all(broken) == batches[:1]
