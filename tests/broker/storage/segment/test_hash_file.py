"""The files of indexes and the runs that they are made of find the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from crc32c import crc32c
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.segment.hash_entries import BatchEntries, bounds_of
from tidelog_broker.storage.segment.hash_file import BLOCK_BYTES, HASH_HEADER_BYTES, HashFile, pack_hashes
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_proto.batch.key_hash import hash_one

PATH = Path("/segment.key")
NONCE = 77
END = SegmentEnd(5000, 1 << 20, 0xABCD)
KEYS = [hash_one(b"key-%d" % number) for number in range(200)]


def runs_of(random: Random, slots: int, *, keys: int = 200, step: int = 7) -> tuple[HashRuns, list[set[int]]]:
    """Return an index of `slots` batches, and the keys of each; a batch in fifty is open."""
    runs = HashRuns()
    held: list[set[int]] = []
    for first in range(0, slots, step):
        stop = min(slots, first + step)
        entries: list[int] = []
        opens: list[int] = []
        for slot in range(first, stop):
            mine = set(random.sample(KEYS[:keys], random.randint(0, min(keys, 20))))
            if random.random() < 0.02:
                opens.append(slot)
                mine = set(KEYS)
            else:
                entries += [int(bounds_of(key, slot, slot + 1)[0]) for key in mine]
            held.append(mine)
        runs = runs.with_more(BatchEntries(np.array(sorted(entries), np.uint64), opens), stop)
    return runs, held


def write(runs: HashRuns) -> SimDisk:
    sim = SimDisk()
    sim.open(PATH, create=True).pwritev(pack_hashes(runs, "key", nonce=NONCE, end=END), 0)
    return sim


def load(sim: SimDisk, slots: int) -> HashFile:
    return HashFile.load(sim.open_readonly(PATH), "key", nonce=NONCE, slots=slots, end=END)


@pytest.mark.parametrize("seed", range(10))
def test_file_and_memory_index_find_the_same(seed: int) -> None:
    random = Random(seed)
    slots = random.choice((1, 30, 500))
    runs, held = runs_of(random, slots, step=random.choice((1, 7, 200)))
    file = load(write(runs), slots)
    assert file.slots == runs.covered == slots
    file.check()
    for _ in range(60):
        key, first = random.choice(KEYS), random.randint(0, slots)
        stop, count = random.randint(first, slots), random.choice((1, 3, 1000))
        expected = [slot for slot in range(first, stop) if key in held[slot]]
        for newest in (False, True):
            some = expected[-count:] if newest else expected[:count]
            assert runs.find(key, first, stop, count, newest=newest) == some
            assert file.find(key, first, stop, count, newest=newest) == some


def test_key_in_every_batch_is_returned_in_pages() -> None:
    runs = HashRuns()
    slots = 20_000
    entries = np.array([int(bounds_of(KEYS[0], slot, slot + 1)[0]) for slot in range(slots)], np.uint64)
    runs = runs.with_more(BatchEntries(entries, []), slots)
    sim = write(runs)
    assert sim.open_readonly(PATH).size() > 30 * BLOCK_BYTES
    file = load(sim, slots)
    for newest in (False, True):
        assert len(file.find(KEYS[0], 100, slots, 256, newest=newest)) == 256
    assert file.find(KEYS[0], 9_000, slots, 2, newest=False) == [9_000, 9_001]
    assert file.find(KEYS[0], 0, 9_000, 2, newest=True) == [8_998, 8_999]
    assert file.find(KEYS[1], 0, slots, 2, newest=True) == []


def test_an_index_without_entries() -> None:
    file = load(write(HashRuns().with_more(BatchEntries(np.empty(0, np.uint64), []), 9)), 9)
    assert file.find(KEYS[0], 0, 9, 5, newest=True) == []
    file.check()


def test_runs_are_merged_without_loss() -> None:
    runs, held = runs_of(Random(1), 2000, step=1)
    assert len(runs.runs) < 15
    assert len(runs.entries()) == sum(len(mine) for slot, mine in enumerate(held) if slot not in runs.open_slots)
    assert runs.size_bytes == 8 * (len(runs.entries()) + len(runs.open_slots))


def test_truncated_batches_are_not_found() -> None:
    runs, held = runs_of(Random(2), 300)
    kept = runs.first(100)
    assert (kept.covered, runs.first(300)) == (100, runs)
    for key in KEYS[:20]:
        expected = [slot for slot in range(100) if key in held[slot]]
        assert kept.find(key, 0, 300, 1000, newest=False) == expected
    again = kept.with_more(BatchEntries(np.array([int(bounds_of(KEYS[0], 100, 101)[0])], np.uint64), []), 101)
    assert again.find(KEYS[0], 100, 300, 9, newest=False) == [100]


def test_file_of_another_segment_is_invalid() -> None:
    runs, _ = runs_of(Random(3), 50)
    sim = write(runs)
    file = sim.open_readonly(PATH)
    for wrong, text in (
        ({"nonce": 78}, "another segment"),
        ({"slots": 49}, "the index lists 50 batches .* the segment has 49"),
        ({"end": END._replace(offset=4999)}, "up to offset 5000 .* up to 4999"),
        ({"end": END._replace(digest=1)}, "digest 0x00000001"),
    ):
        asked = {"nonce": NONCE, "slots": 50, "end": END} | wrong
        with pytest.raises(LayoutError, match=text):
            HashFile.load(file, "key", **asked)  # type: ignore[arg-type]  # one of them is wrong
    with pytest.raises(LayoutError, match="another segment"):
        HashFile.load(file, "tag", nonce=NONCE, slots=50, end=END)


def test_short_or_damaged_file_is_invalid() -> None:
    runs, _ = runs_of(Random(4), 400)
    size = write(runs).open_readonly(PATH).size()
    random = Random(5)
    for _ in range(60):
        sim = write(runs)
        node = sim.node(PATH)
        if random.random() < 0.5:
            del node.current[random.randrange(size) :]
            with pytest.raises(LayoutError):
                load(sim, 400)
            continue
        at = random.choice([random.randrange(HASH_HEADER_BYTES), random.randrange(size)])
        node.current[at] ^= 1 << random.randrange(8)
        try:
            file = load(sim, 400)
        except LayoutError:
            continue
        is_padding = at < BLOCK_BYTES
        if not is_padding:
            with pytest.raises(LayoutError):
                file.check()


def test_another_version_is_invalid() -> None:
    sim = write(runs_of(Random(6), 10)[0])
    content = sim.node(PATH).current
    content[4] = 9
    with pytest.raises(LayoutError, match="bad magic or checksum"):
        load(sim, 10)
    content[HASH_HEADER_BYTES - 4 : HASH_HEADER_BYTES] = crc32c(bytes(content[: HASH_HEADER_BYTES - 4])).to_bytes(
        4, "little"
    )
    with pytest.raises(LayoutError, match="version 9, expected"):
        load(sim, 10)
