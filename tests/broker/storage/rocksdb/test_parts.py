"""The indexes of parts: their entries, their first batches, and the cache of those that are closed."""

from __future__ import annotations

from pathlib import Path

from tidelog.testing.engine_batches import EPOCH, batch
from tidelog_broker.storage.rocksdb.parts import IndexCache, PartIndex, RocksPart, hashes_of
from tidelog_broker.storage.rocksdb.rows import PartRow
from tidelog_broker.storage.segment.active_segment import BatchFields, check_group
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.batch.key_hash import hash_one


def stamped(*keys: bytes) -> tuple[list[bytearray], list[BatchFields]]:
    batches = [batch([key, b"common"]) for key in keys]
    offset = digest = 0
    for one in batches:
        digest = stamp_owner(
            one, base_offset=offset, append_timestamp_us=7, epoch=EPOCH, owner_incarnation=9, previous_digest=digest
        )
        offset = unpack_header(one).end_offset
    return batches, check_group(batches, epoch=EPOCH, offset=0, digest=0)


def found(index: PartIndex, key: bytes) -> list[int]:
    return index.runs["key"].find(hash_one(key), 0, len(index.batches), 100, newest=False)


def test_part_finds_its_batches_by_key_until_it_is_cut() -> None:
    batches, fields = stamped(b"a", b"b", b"a", b"c")
    part = RocksPart(Path("/epoch"), 0, PartRow(0))
    for first, stop in ((0, 1), (1, 4)):
        group, these = batches[first:stop], fields[first:stop]
        part.append([len(one) for one in group], these, hashes_of(group, these, first))
    assert part.growing is not None
    assert (found(part.growing, b"a"), found(part.growing, b"common"), found(part.growing, b"x")) == (
        [0, 2],
        [0, 1, 2, 3],
        [],
    )
    cut = part.growing.first(2)
    assert (found(cut, b"a"), found(cut, b"c"), len(part.growing.batches)) == ([0], [], 4)
    assert (part.end_offset, part.end_digest) == (8, unpack_header(batches[-1]).digest)
    closed = RocksPart(Path("/epoch"), 0, part.row)
    assert (closed.growing, closed.end_offset, closed.size_bytes) == (None, 8, part.size_bytes)


def test_cache_keeps_the_indexes_that_were_used_last() -> None:
    loads: list[int] = []

    def index_of(base_offset: int) -> PartIndex:
        def load() -> PartIndex:
            loads.append(base_offset)
            loaded = PartIndex()
            for number in range(10):
                loaded.batches.append(number, 64 * number, 60, 1)
            return loaded

        return cache.get(1, base_offset, load)

    cache = IndexCache(2 * 240)
    for base_offset in (0, 10, 0, 20, 0, 10):
        index_of(base_offset)
    assert loads == [0, 10, 20, 10]
    cache.drop(1, 0)
    index_of(0)
    assert loads[-1] == 0
