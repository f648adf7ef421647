"""The rows of the database: order of keys, and values that are invalid."""

from __future__ import annotations

import numpy as np
import pytest

from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.rocksdb.rows import (
    PartRow,
    StoreIdentity,
    extend_index,
    extend_runs,
    offset_in,
    pack_entries,
    pack_identity,
    pack_index,
    pack_part,
    parse_identity,
    parse_part,
    row_key,
    store_in,
    store_key,
)
from tidelog_broker.storage.segment.hash_entries import BatchEntries
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import Index

IDENTITY = StoreIdentity(EpochStart(bytes(range(16)), 3, 7, 1 << 40, 0xABCD), 9)
PART = PartRow(1, True, 1 << 40, 4096, -5, 0xFFFFFFFF)


def test_keys_are_in_the_order_of_stores_and_offsets() -> None:
    keys = [row_key(b"p", store, offset) for store in (1, 255, 256, 1 << 40) for offset in (0, 9, 256, 1 << 50)]
    assert keys == sorted(keys)
    assert (store_in(keys[-1]), offset_in(keys[-1])) == (1 << 40, 1 << 50)
    assert all(store_key(b"p", 255) <= key < store_key(b"p", 256) for key in keys[4:8])


def test_values_are_parsed_as_they_were_packed() -> None:
    assert parse_identity(pack_identity(IDENTITY)) == IDENTITY
    assert parse_part(pack_part(PART)) == PART
    assert not parse_part(pack_part(PartRow(5))).is_closed


def test_indexes_are_extended_in_the_order_of_slots() -> None:
    index, first, second = Index(), Index(), Index()
    for number in range(3):
        first.append(10 * number, 64 * number, 60, 5)
    second.append(30, 192, 60, 7)
    extend_index(index, pack_index(first, at=0))
    extend_index(index, pack_index(second, at=3))
    assert (list(index.offsets), list(index.times_us)) == ([0, 10, 20, 30], [5, 5, 5, 7])
    with pytest.raises(LayoutError, match="expected version 1 and the slots from 4 on"):
        extend_index(index, pack_index(second, at=3))
    found = BatchEntries(np.array([1 << 30, 1 << 31], np.uint64), [1])
    runs = extend_runs(HashRuns(), pack_entries(found, 0, 2))
    assert (runs.covered, runs.open_slots, list(runs.entries())) == (2, (1,), [1 << 30, 1 << 31])
    with pytest.raises(LayoutError, match="expected the slots from 2 on"):
        extend_runs(runs, pack_entries(found, 0, 2))


@pytest.mark.parametrize("size", [0, 5, -1])
def test_short_values_are_refused(size: int) -> None:
    index, found = Index(), BatchEntries(np.array([7], np.uint64), [])
    index.append(0, 0, 60, 5)
    for parse, value in (
        (parse_identity, pack_identity(IDENTITY)),
        (parse_part, pack_part(PART)),
        (lambda value: extend_index(Index(), value), pack_index(index, at=0)),
        (lambda value: extend_runs(HashRuns(), value), pack_entries(found, 0, 1)),
    ):
        with pytest.raises(LayoutError):
            parse(value[:size])


def test_identity_of_a_later_version_is_refused() -> None:
    value = bytearray(pack_identity(IDENTITY))
    value[0] = 2
    with pytest.raises(LayoutError, match="has version 2, expected 1"):
        parse_identity(bytes(value))
