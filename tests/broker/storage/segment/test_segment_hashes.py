"""A lookup never misses a batch that matches, regardless of how much of the segment is indexed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.keyed import KEYS, random_batch
from tests.broker.storage.segment.test_hash_entries import stored
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.segment import segment_hashes
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import hash_path
from tidelog_broker.storage.segment.segment_hashes import SegmentHashes
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.batch.record_batch import RecordBatch

SEGMENT = Path("/00000000000000000000.seg")
END = SegmentEnd(900, 1 << 16, 5)
SLOTS = 60


def made(random: Random) -> tuple[SegmentHashes, list[set[bytes | None]]]:
    batches = [random_batch(random) for _ in range(SLOTS)]
    file, index = stored(batches)
    parsed = [RecordBatch.parse(bytes(one)) for one in batches]
    return SegmentHashes(file, index), [set() if one.control else set(one.keys()) for one in parsed]


def all_named(hashes: SegmentHashes, key: bytes, first: int, stop: int, count: int, *, newest: bool) -> list[int]:
    """Ask on until everything is named."""
    found: list[int] = []
    while first < stop:
        named = hashes.find("key", hash_one(key), first, stop, count, newest=newest)
        assert named.slots == sorted(named.slots)
        assert all(named.first <= slot < named.stop for slot in named.slots)
        if newest:
            assert named.stop == stop > named.first
            found, stop = [*named.slots, *found], named.first
        else:
            assert named.first == first < named.stop
            found, first = [*found, *named.slots], named.stop
    return found


@pytest.mark.parametrize("covered", [0, 17, SLOTS])
@pytest.mark.parametrize("newest", [True, False])
def test_lookup_returns_all_matching_batches(monkeypatch: pytest.MonkeyPatch, covered: int, newest: bool) -> None:
    monkeypatch.setattr(segment_hashes, "window_stop", lambda _, first, stop: min(stop, first + 5))
    random = Random(f"{covered} {newest}")
    hashes, held = made(random)
    assert hashes.catch_up(["key"], covered, windows_max=100)
    assert hashes.covered("key") == covered
    for _ in range(40):
        key, first = random.choice([key for key in KEYS if key is not None]), random.randrange(SLOTS)
        stop = random.randint(first, SLOTS)
        named = all_named(hashes, key, first, stop, random.choice((1, 4, 100)), newest=newest)
        indexed = [slot for slot in range(first, min(stop, covered)) if key in held[slot]]
        assert set(indexed) <= set(named)
        assert len([slot for slot in named if slot < covered and key not in held[slot]]) == 0
        assert [slot for slot in named if slot >= covered] == list(range(max(first, covered), max(covered, stop)))


def test_lookup_without_a_column_returns_everything() -> None:
    hashes, _ = made(Random(1))
    hashes.catch_up(["key"], SLOTS, windows_max=100)
    named = hashes.find(None, 0, 3, 40, 20, newest=False)
    assert named == (list(range(3, 23)), 3, 23)
    assert hashes.find(None, 0, 3, 40, 20, newest=True) == (list(range(20, 40)), 20, 40)


def test_catch_up_stops_at_the_given_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_hashes, "window_stop", lambda _, first, stop: min(stop, first + 5))
    hashes, _ = made(Random(2))
    assert not hashes.catch_up(["key"], SLOTS, windows_max=2)
    assert (hashes.covered("key"), hashes.covered("tag")) == (10, 0)
    assert hashes.catch_up(["key"], 10, windows_max=1)
    assert hashes.size_bytes > 0


def test_index_file_replaces_the_memory_index() -> None:
    hashes, held = made(Random(3))
    sim = SimDisk()
    assert not hashes.load(sim, SEGMENT, "key", nonce=1, end=END)
    hashes.catch_up(["key"], SLOTS, windows_max=100)
    pieces = hashes.pack("key", nonce=1, end=END)
    sim.open(hash_path(SEGMENT, "key"), create=True).pwritev(pieces, 0)
    assert not hashes.load(sim, SEGMENT, "key", nonce=1, end=END), "it is looked for once"
    hashes.look_again("key")
    assert hashes.load(sim, SEGMENT, "key", nonce=1, end=END)
    assert (hashes.has_file("key"), hashes.covered("key"), hashes.size_bytes) == (True, SLOTS, 0)
    expected = [slot for slot in range(SLOTS) if b"a" in held[slot]]
    assert all_named(hashes, b"a", 0, SLOTS, 9, newest=False) == expected
    sim.node(hash_path(SEGMENT, "key")).current[-1] ^= 1
    assert set(expected) <= set(all_named(hashes, KEYS[5] or b"", 0, SLOTS, 9, newest=False)) | set(range(SLOTS))
    assert not hashes.has_file("key"), "it was found to be damaged"
    assert hashes.covered("key") == 0
    hashes.close()


def test_truncated_segment_keeps_its_index() -> None:
    hashes, held = made(Random(4))
    hashes.catch_up(["key"], SLOTS, windows_max=100)
    cut = hashes.cut(20, hashes._file, hashes._index.first(20))
    assert cut.covered("key") == 20
    assert all_named(cut, b"a", 0, 20, 9, newest=True) == [slot for slot in range(20) if b"a" in held[slot]]
