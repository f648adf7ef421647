from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import HOME
from tests.broker.storage.logs import failing, new_disk
from tests.broker.storage.sim_disk import SECTOR_BYTES, PowerCutError, SimDisk

from tidelog_broker.storage.io.errors import DamagedError, DiskFullError, StorageError, StorageFailedError
from tidelog_broker.storage.node.journal import ENTRY_HEADER_BYTES, RESERVE_BYTES, Journal

PATH = HOME / "journal"
MAGIC = b"TEST"


def open_journal(sim: SimDisk) -> tuple[Journal, list[bytes]]:
    if not sim.exists(PATH):
        Journal.make(sim, PATH, MAGIC)
    return Journal.open(sim, PATH, MAGIC)


def written(*, close: bool = True) -> tuple[SimDisk, list[bytes], list[int]]:
    """Three groups, the payloads, and the position of each group; closed, or as left by a kill after the last group."""
    sim = new_disk()
    journal, _ = open_journal(sim)
    payloads: list[bytes] = []
    starts: list[int] = []
    for number in range(3):
        group = [bytes([65 + number]) * 50, b"", bytes([97 + number]) * 200]
        starts.append(journal.size_bytes)
        journal.append(group)
        payloads += group
    if close:
        journal.close()
    return sim, payloads, starts


def flipped(sim: SimDisk, content: bytes, at: int) -> SimDisk:
    """Return the disk as a start finds it, with this content of the journal and one bit of the byte `at` flipped."""
    again = sim.restart()
    again.node(PATH).current = bytearray(content)
    again.node(PATH).current[at] ^= 4
    return again


def test_appended_payloads_are_loaded_in_order() -> None:
    sim, payloads, _ = written()
    journal, found = open_journal(sim)
    assert found == payloads
    journal.append([])
    journal.append([b"more"])
    journal.close()
    assert open_journal(sim)[1] == [*payloads, b"more"]


def test_truncation_or_flip_is_torn_in_the_last_group_and_damage_before_it() -> None:
    sim, payloads, starts = written(close=False)
    content = bytes(sim.node(PATH).current)
    end = open_journal(sim)[0].size_bytes - 64  # a mark since it was opened
    for at in range(0, end, 7):
        try:
            _, found = open_journal(flipped(sim, content, at))
        except DamagedError:
            assert at < starts[2]
        else:
            # Padding may flip unseen; an entry may not.
            assert found == payloads[: len(found)]
            assert at >= starts[2] or found == payloads, f"a flip at {at} lost entries silently"
    for cut in range(starts[2], end, 5):
        again = sim.restart()
        again.node(PATH).current = bytearray(content[:cut].ljust(len(content), b"\0"))
        journal, found = open_journal(again)
        assert found[:6] == payloads[:6]
        assert found == payloads[: len(found)]
        assert not again.node(PATH).current[journal.size_bytes :].strip(b"\0")


@pytest.mark.parametrize("how", ["close", "mark", "open", "compact"])
def test_a_flip_in_the_last_group_is_damage_once_a_mark_follows_it(how: str) -> None:
    sim, payloads, _ = written(close=how == "close")
    if how != "close":
        journal, _ = open_journal(sim)
        if how != "open":
            journal.append([b"last"])
            payloads.append(b"last")
        if how == "compact":
            journal.compact(payloads)
        elif how == "mark":
            journal.mark()
            size_bytes = journal.size_bytes
            journal.mark()
            assert journal.size_bytes == size_bytes, "one mark is enough"
    content = bytes(sim.node(PATH).current)
    marked = content.rindex(b"TLJM")
    assert not content[marked + 64 :].strip(b"\0")
    damaged = 0
    for at in range(64, marked, 5):
        try:
            _, found = open_journal(flipped(sim, content, at))
        except DamagedError:
            damaged += 1
        else:
            assert found == payloads, f"a flip at {at} lost entries silently"
    assert damaged > (marked - 64) // 5 // 3
    for at in range(marked, marked + 64):  # of the mark itself there is nothing to lose
        assert open_journal(flipped(sim, content, at))[1] == payloads


def test_a_mark_is_left_out_on_a_full_disk() -> None:
    sim = new_disk()
    journal, _ = open_journal(sim)
    sim.free_bytes = 0
    rest = bytes(journal._allocated_bytes - journal.size_bytes - ENTRY_HEADER_BYTES)
    journal.append([rest])
    size_bytes = journal.size_bytes
    journal.mark()
    assert journal.size_bytes == size_bytes
    journal.close()
    assert open_journal(sim)[1] == [rest]


def test_a_mark_that_fails_is_final() -> None:
    sim, _, _ = written(close=False)
    journal, _ = open_journal(sim)
    journal.append([b"x"])
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == "sync" else None
    with pytest.raises(StorageFailedError, match="broken"):
        journal.mark()
    sim.fail = lambda what, path: None
    with pytest.raises(StorageFailedError, match="takes no more writes"):
        journal.append([b"y"])
    journal.close()


def test_a_hole_in_a_synced_group_is_damage() -> None:
    sim, _, starts = written()
    sim.node(PATH).current[starts[1] : starts[1] + 128] = bytes(128)
    with pytest.raises(DamagedError, match="synced"):
        open_journal(sim)


def test_a_bad_header_or_another_kind_is_damage() -> None:
    sim, _, _ = written()
    with pytest.raises(DamagedError):
        Journal.open(sim, PATH, b"ELSE")
    sim.node(PATH).current[20] ^= 1
    with pytest.raises(DamagedError):
        open_journal(sim)
    sim.node(PATH).current = bytearray(b"short")
    with pytest.raises(DamagedError):
        open_journal(sim)
    assert sim.open_files == 0


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 60))
def test_power_loss_loses_nothing_that_append_or_compact_returned(seed: int, cut: int) -> None:
    random = Random(seed)
    sim = new_disk()
    sim.cut_at = sim.steps + cut
    durable: list[bytes] = []
    attempted: list[bytes] = []
    compacting: list[bytes] | None = None
    with suppress(PowerCutError):
        journal, _ = open_journal(sim)
        for number in range(12):
            if random.random() < 0.2:
                compacting = durable[len(durable) // 2 :]
                journal.compact(compacting)
                durable, compacting = compacting, None
            group = [bytes([number]) * random.randint(0, 300) for _ in range(random.randint(1, 3))]
            attempted = [*durable, *group]
            journal.append(group)
            durable = attempted
    _, found = open_journal(sim.power_cut(random))
    allowed = [durable, compacting] if compacting is not None else [attempted[:n] for n in range(len(durable), 99)]
    assert found in allowed


def test_the_reserve_takes_entries_when_the_disk_is_full() -> None:
    sim = new_disk()
    journal, _ = open_journal(sim)
    sim.free_bytes = 0
    taken: list[bytes] = []
    with pytest.raises(DiskFullError):
        append_until_refused(journal, taken)
    assert sum(map(len, taken)) > RESERVE_BYTES * 0.9
    sim.free_bytes = None
    append_noting(journal, taken)
    assert open_journal(sim.restart())[1] == taken


def test_reserve_is_reallocated_when_there_is_space() -> None:
    sim = new_disk()
    journal, _ = open_journal(sim)
    assert journal.has_reserve()
    sim.free_bytes = 0
    with pytest.raises(DiskFullError):
        append_until_refused(journal, [])
    assert not journal.has_reserve()
    sim.free_bytes = None
    assert journal.has_reserve()


def append_until_refused(journal: Journal, taken: list[bytes]) -> None:
    for _ in range(1000):
        append_noting(journal, taken)


def append_noting(journal: Journal, taken: list[bytes]) -> None:
    payload = bytes([len(taken) % 256]) * 20_000
    journal.append([payload])
    taken.append(payload)


def test_compaction_on_a_full_disk_leaves_the_old_file() -> None:
    sim, payloads, _ = written()
    journal, _ = open_journal(sim)
    sim.free_bytes = 0
    with pytest.raises(DiskFullError):
        journal.compact(payloads[:1])
    journal.append([b"on"])
    assert open_journal(sim.restart())[1] == [*payloads, b"on"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_error_after_the_rename_of_a_compaction_is_final(number: int) -> None:
    sim, payloads, _ = written()
    journal, _ = open_journal(sim)
    sim.fail = lambda what, path: OSError(number, "broken") if what == "sync_dir" else None
    with pytest.raises(StorageFailedError, match="broken"):
        journal.compact(payloads)
    sim.fail = lambda what, path: None
    with pytest.raises(StorageFailedError, match="takes no more writes"):
        journal.append([b"would go to a file without a name"])
    journal.close()
    assert open_journal(sim.restart())[1] == payloads


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_append_is_final(operation: str) -> None:
    sim, payloads, _ = written()
    journal, _ = open_journal(sim)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None
    with pytest.raises(StorageFailedError, match="broken"):
        journal.append([b"x"])
    sim.fail = lambda what, path: None
    with pytest.raises(StorageFailedError, match="takes no more writes"):
        journal.append([b"y"])
    assert open_journal(sim.restart())[1][: len(payloads)] == payloads


def test_payloads_that_look_like_entries_are_ignored() -> None:
    sim, _, starts = written()
    entry = bytes(sim.node(PATH).current[starts[2] : starts[2] + 128])
    other = new_disk()
    journal, _ = open_journal(other)
    journal.append([b"first"])
    journal.append([bytes(24) + entry * 4])
    other.node(PATH).current[journal.size_bytes - 200] ^= 1
    assert open_journal(other.restart())[1] == [b"first"]


class Restarts:
    """A journal over several restarts: the appended payloads, and how many must survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sim = new_disk()
        open_journal(self.sim)[0].close()
        self.written: list[bytes] = []
        self.synced = 0

    def write(self, groups: int = 3) -> None:
        """Open and append; ends where the disk fails or the power goes, or as after a kill."""
        journal, found = open_journal(self.sim)
        assert len(found) >= self.synced, "synced payloads are gone"
        assert found == self.written[: len(found)], "the journal has payloads that were never appended"
        assert not self.sim.node(PATH).lost, "an opened journal and its zero padding are durable"
        self.written, self.synced = found, len(found)
        for _ in range(groups):
            group = [self.random.randbytes(self.random.choice([0, 30, 700])) for _ in range(self.random.randint(1, 3))]
            self.written += group
            journal.append(group)
            self.synced = len(self.written)
            if self.random.random() < 0.3:
                journal.mark()
            if self.random.random() < 0.2:
                journal.compact(self.written)

    def end(self, *, power: bool) -> None:
        self.sim = self.sim.power_cut(self.random) if power else self.sim.restart()


@pytest.mark.parametrize("operation", ["sync", "sync_dir", "write", "rename"])
def test_disk_failure_anywhere_and_restarts_lose_nothing_appended(operation: str) -> None:
    for number in range(12):
        for seed in range(4):
            restarts = Restarts(seed)
            for at in (number, restarts.random.randrange(3), restarts.random.randrange(6)):
                restarts.sim.fail = failing({operation}, at)
                with suppress(StorageError):
                    restarts.write()
                restarts.end(power=False)
            restarts.write()
            restarts.end(power=True)
            restarts.write()


def test_crash_at_each_step_of_a_restart_after_a_failure_loses_nothing_appended() -> None:
    for cut in range(16):
        for seed in range(4):
            for power in (False, True):
                restarts = Restarts(seed)
                restarts.sim.fail = failing({"sync"}, 1 + seed)
                with suppress(StorageError):
                    restarts.write(8)
                restarts.end(power=False)
                restarts.sim.cut_at = cut
                with suppress(PowerCutError):
                    restarts.write()
                restarts.end(power=power)
                restarts.write()
                restarts.end(power=True)
                restarts.write()


@pytest.mark.parametrize("how", ["in compaction", "when it is made"])
def test_start_after_a_kill_makes_a_renamed_journal_durable(how: str) -> None:
    for seed in range(8):
        sim = new_disk()
        if how == "in compaction":
            open_journal(sim)[0].append([b"old"])
        sim.fail = lambda operation, path: OSError(errno.EIO, "killed here") if operation == "sync_dir" else None
        with suppress(StorageFailedError):
            open_journal(sim)[0].compact([b"old"])
        sim = sim.restart()
        journal, _ = open_journal(sim)
        journal.append([b"new"])
        assert open_journal(sim.power_cut(Random(seed)))[1][-1:] == [b"new"]


def test_entry_after_a_torn_one_does_not_reappear_if_zeroing_failed() -> None:
    for seed in range(8):
        sim = new_disk()
        journal, _ = open_journal(sim)
        start = journal.size_bytes
        size_bytes = 3 * SECTOR_BYTES - start - ENTRY_HEADER_BYTES  # so that the next one has a sector of its own
        journal.append([b"t" * size_bytes, b"whole" * 300])
        node = sim.node(PATH)
        node.current[start + 100] ^= 1
        node.durable = bytes(node.current)
        sim.fail = failing({"sync"}, 0)
        with pytest.raises(StorageFailedError):
            open_journal(sim)
        sim = sim.restart()
        journal, found = open_journal(sim)
        assert found == []
        journal.append([b"T" * size_bytes])
        assert open_journal(sim.power_cut(Random(seed)))[1] == [b"T" * size_bytes]


def test_missing_journal_is_damage_and_is_not_recreated() -> None:
    sim = new_disk()
    with pytest.raises(DamagedError, match=r"is missing; .*promised to other nodes.*--replace"):
        Journal.open(sim, PATH, MAGIC)
    assert not sim.exists(PATH)


def test_journal_is_created_over_an_empty_one_but_not_over_entries() -> None:
    sim, payloads, _ = written()
    with pytest.raises(DamagedError, match=f"it exists and has {len(payloads)} entries"):
        Journal.make(sim, PATH, MAGIC)
    assert open_journal(sim)[1] == payloads
    for cut in range(40):
        sim = new_disk()
        sim.cut_at = cut
        with suppress(PowerCutError):
            Journal.make(sim, PATH, MAGIC)
        sim = sim.power_cut(Random(cut)) if cut % 2 else sim.restart()
        Journal.make(sim, PATH, MAGIC)
        assert Journal.open(sim.power_cut(Random(cut)), PATH, MAGIC)[1] == []


def test_full_disk_refuses_creation() -> None:
    sim = new_disk()
    sim.free_bytes = 10
    with pytest.raises(DiskFullError, match="cannot be created"):
        Journal.make(sim, PATH, MAGIC)
