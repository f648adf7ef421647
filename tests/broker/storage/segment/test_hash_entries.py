from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from tests.broker.storage.build import stamp
from tests.broker.storage.keyed import keyed, random_batch
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.hash_entries import (
    bounds_of,
    collect,
    newest_or_oldest,
    slots_of,
    window_stop,
)
from tidelog_broker.storage.segment.index import Index
from tidelog_broker.storage.segment.scan import WINDOW_BYTES
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.batch.record_batch import RecordBatch

PATH = Path("/segment")


def stored(batches: Sequence[bytearray], at: int = 128) -> tuple[File, Index]:
    """Return a file with batches, and their index."""
    sim, index, offset = SimDisk(), Index(), 0
    file = sim.open(PATH, create=True)
    for one in stamp(batches, offset=0, digest=0):
        file.pwritev([one, bytes(padded(len(one)) - len(one))], at)
        index.append(offset, at, len(one), 0)
        offset = RecordBatch.parse(bytes(one)).end_offset
        at += padded(len(one))
    return file, index


def named(entries: np.ndarray, key: bytes, first: int = 0, stop: int = 1 << 20) -> list[int]:
    low, high = bounds_of(hash_one(key), first, stop)
    slots: list[int] = slots_of(entries[(entries >= low) & (entries < high)]).tolist()
    return slots


def test_each_key_of_a_batch_has_one_entry() -> None:
    file, index = stored([keyed([b"a", b"b", b"a", None]), keyed([b"b"]), keyed(None, ["b"]), keyed([b"a"])])
    found = collect(file, index, ["key"], 0, 4)["key"]
    assert len(found.entries) == 4
    assert found.entries.tolist() == sorted(found.entries.tolist())
    assert (named(found.entries, b"a"), named(found.entries, b"b"), named(found.entries, b"c")) == ([0, 3], [0, 1], [])
    assert named(found.entries, b"a", 1) == named(found.entries, b"a", 3, 4) == [3]
    assert named(found.entries, b"a", 0, 3) == [0]
    assert named(collect(file, index, ["tag"], 0, 4)["tag"].entries, b"b") == [2]
    assert found.open_slots == []


def test_every_key_of_any_batches_is_found() -> None:
    random = Random(3)
    batches = [random_batch(random) for _ in range(60)]
    file, index = stored(batches)
    for column in ("key", "tag"):
        found = collect(file, index, [column], 10, 60)[column]
        for slot, batch in enumerate(map(RecordBatch.parse, map(bytes, batches))):
            texts = batch.keys() if column == "key" else [None if tag is None else tag.encode() for tag in batch.tags()]
            for text in set(texts) - {None}:
                assert text is not None
                is_there = slot >= 10 and not batch.control
                assert (slot in named(found.entries, text) or slot in found.open_slots) == is_there


def test_a_batch_with_more_keys_than_bytes_is_open() -> None:
    dense = keyed([b"%05d" % number for number in range(5000)], codec=Codec.ZSTD)
    assert len(dense) < 5000 * 8
    file, index = stored([keyed([b"00001"]), dense])
    found = collect(file, index, ["key"], 0, 2)["key"]
    assert (len(found.entries), found.open_slots) == (1, [1])


def test_a_damaged_batch_is_open() -> None:
    batches = [keyed([b"a"]), keyed([b"b"]), keyed([b"c"], codec=Codec.GZIP)]
    file, index = stored(batches)
    for slot in (1, 2):
        file.pwritev([b"?"], index.place(slot).position + 150)
    found = collect(file, index, ["key"], 0, 3)["key"]
    assert (named(found.entries, b"a"), len(found.entries), found.open_slots) == ([0], 1, [1, 2])


def test_a_file_that_is_too_short_leaves_batches_open() -> None:
    file, index = stored([keyed([b"a"]), keyed([b"b"])])
    file.truncate(index.place(1).position + 10)
    assert collect(file, index, ["key"], 0, 2)["key"].open_slots == [1]


def test_windows_end_with_whole_batches() -> None:
    index = Index()
    for slot in range(10):
        index.append(slot, 128 + slot * WINDOW_BYTES // 4, 100, 0)
    assert [window_stop(index, 0, 10), window_stop(index, 4, 10), window_stop(index, 8, 10)] == [4, 8, 10]
    assert window_stop(index, 0, 2) == 2
    large = Index()
    large.append(0, 128, 4 * WINDOW_BYTES, 0)
    large.append(1, 128 + 4 * WINDOW_BYTES, 100, 0)
    assert window_stop(large, 0, 2) == 1


def test_largest_slot_and_hash_have_entries() -> None:
    low, high = bounds_of((1 << 64) - 1, 0, 1 << 25)
    assert int(low) >> 25 == (1 << 39) - 1
    assert int(high) == (1 << 64) - 1


def test_slots_of_several_sources_are_merged() -> None:
    sources = [np.array([1, 5]), np.array([], np.int64), np.array([2, 5, 9])]
    assert newest_or_oldest(sources, 3, newest=False) == [1, 2, 5]
    assert newest_or_oldest(sources, 2, newest=True) == [5, 9]
    assert newest_or_oldest([], 2, newest=True) == []
