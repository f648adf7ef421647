"""The keys and values of the database.

| column family | key | value |
| --- | --- | --- |
| `default` | `f` | format version, id of the database |
| | `n` | the next store id |
| | `s`, store | the identity of a store |
| | `p`, store, base offset | a part of a store |
| | `x`, store | the directory of a store whose contents were deleted |
| | `l`, store | end and mark of a store with which a start has kept the earlier database |
| `batches` | store, base offset | a batch as it is stored |
| `time` | `g` or `p`, store, base offset | offsets, lengths and times of batches |
| `key`, `tag` | `g` or `p`, store, base offset | sorted hashes of the keys or tags of batches |

Numbers of keys are big-endian, so that keys are in the order of stores and offsets. A row `g` of an index is written
with each group of the growing part of a store; when the part is full, one row `p` replaces them. A store id is never
used again.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

import numpy as np

from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.segment.hash_entries import BatchEntries
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import Index

DATABASE_VERSION: Final = 1
FORMAT_KEY: Final = b"f"
NEXT_KEY: Final = b"n"
FORMAT: Final = struct.Struct("<IQ")
NUMBER: Final = struct.Struct("<Q")
_PAIR: Final = struct.Struct(">QQ")
_STORE: Final = struct.Struct(">Q")
_IDENTITY: Final = struct.Struct("<I16sIQQIQ")
_PART: Final = struct.Struct("<IQQqII")
_BATCHES: Final = struct.Struct("<III")
_ENTRIES: Final = struct.Struct("<IIII")
_IDENTITY_VERSION: Final = 1
STORE_MAX: Final = (1 << 63) - 1


class StoreIdentity(NamedTuple):
    """The identity of a store, and the slot of its sync mark."""

    start: EpochStart
    slot: int


class PartRow(NamedTuple):
    """A part of a store.

    Attributes:
        is_closed: whether the part takes no more batches; the other fields but `start_digest` are 0 if it does.
        max_timestamp_us: the highest timestamp of its records.
    """

    start_digest: int
    is_closed: bool = False
    end_offset: int = 0
    size_bytes: int = 0
    max_timestamp_us: int = 0
    end_digest: int = 0


def store_key(kind: bytes, store: int) -> bytes:
    """Return the key of a row of a store."""
    return kind + _STORE.pack(store)


def pack_short(end_offset: int | None, mark: int | None) -> bytes:
    """Return the value of the row of a store that a start has found short, or without a mark."""
    return _PAIR.pack(*(0 if offset is None else offset + 1 for offset in (end_offset, mark)))


def row_key(kind: bytes, store: int, offset: int = 0) -> bytes:
    """Return the key of a row of a store at an offset; `kind` is empty for a batch."""
    return kind + _PAIR.pack(store, offset)


def offset_in(key: bytes) -> int:
    """Return the offset at the end of a key."""
    offset: int = _STORE.unpack_from(key, len(key) - 8)[0]
    return offset


def store_in(key: bytes) -> int:
    """Return the store in the key of a row of the families `default`, `time`, `key` and `tag`."""
    store: int = _STORE.unpack_from(key, 1)[0]
    return store


def pack_identity(identity: StoreIdentity) -> bytes:
    """Return the value of an identity."""
    start = identity.start
    return _IDENTITY.pack(
        _IDENTITY_VERSION, start.topic_id, start.partition, start.epoch, start.offset, start.digest, identity.slot
    )


def parse_identity(value: bytes) -> StoreIdentity:
    """Parse the value of an identity.

    Raises:
        LayoutError: it is of another version, or invalid.
    """
    try:
        version, topic_id, partition, epoch, offset, digest, slot = _IDENTITY.unpack(value)
    except struct.error as error:
        raise LayoutError(f"the identity of a store has {len(value)} bytes, expected {_IDENTITY.size}") from error
    if version != _IDENTITY_VERSION:
        raise LayoutError(f"the identity of a store has version {version}, expected {_IDENTITY_VERSION}")
    return StoreIdentity(EpochStart(topic_id, partition, epoch, offset, digest), slot)


def pack_part(part: PartRow) -> bytes:
    """Return the value of a part."""
    return _PART.pack(
        part.start_digest, part.end_offset, part.size_bytes, part.max_timestamp_us, part.end_digest, int(part.is_closed)
    )


def parse_part(value: bytes) -> PartRow:
    """Parse the value of a part.

    Raises:
        LayoutError: it is invalid.
    """
    try:
        start_digest, end_offset, size_bytes, max_timestamp_us, end_digest, closed = _PART.unpack(value)
    except struct.error as error:
        raise LayoutError(f"a part has {len(value)} bytes, expected {_PART.size}") from error
    return PartRow(start_digest, bool(closed), end_offset, size_bytes, max_timestamp_us, end_digest)


def pack_index(index: Index, *, at: int) -> bytes:
    """Return the value of batches in the family `time`.

    Args:
        at: the slot of the first of these batches in their part.
    """
    arrays = (index.offsets, index.places, index.times_us)
    return _BATCHES.pack(1, at, len(index)) + b"".join(array("q", one).tobytes() for one in arrays)


def extend_index(index: Index, value: bytes) -> None:
    """Append the batches of a row of the family `time` to an index.

    Raises:
        LayoutError: the row is invalid, or does not continue the index.
    """
    if len(value) < _BATCHES.size:
        raise LayoutError(f"an index row has {len(value)} bytes, expected at least {_BATCHES.size}")
    version, first, count = _BATCHES.unpack_from(value)
    if version != 1 or len(value) != _BATCHES.size + 24 * count or first != len(index):
        raise LayoutError(
            f"an index row has version {version} and {len(value)} bytes for the slots {first} to {first + count - 1}; "
            f"expected version 1 and the slots from {len(index)} on"
        )
    columns = [index.offsets, index.places, index.times_us]
    for number in (1, 2, 0):  # Offsets last, so that other threads see whole entries only.
        column = columns[number]
        assert isinstance(column, array)
        start = _BATCHES.size + 8 * count * number
        column.frombytes(value[start : start + 8 * count])


def pack_entries(found: BatchEntries, first: int, stop: int) -> bytes:
    """Return the value of the hashes of the slots `first` to `stop - 1`, in the family of a column."""
    open_slots = np.array(found.open_slots, np.uint32).tobytes()
    return _ENTRIES.pack(first, stop, len(found.entries), len(found.open_slots)) + found.entries.tobytes() + open_slots


def extend_runs(runs: HashRuns, value: bytes) -> HashRuns:
    """Return an index of hashes with the entries of a row added.

    Raises:
        LayoutError: the row is invalid, or does not continue the index.
    """
    if len(value) < _ENTRIES.size:
        raise LayoutError(f"a row of hashes has {len(value)} bytes, expected at least {_ENTRIES.size}")
    first, stop, count, open_count = _ENTRIES.unpack_from(value)
    if first != runs.covered or len(value) != _ENTRIES.size + 8 * count + 4 * open_count:
        raise LayoutError(
            f"a row of hashes has {len(value)} bytes for {count} entries of the slots {first} to {stop - 1}, expected "
            f"the slots from {runs.covered} on"
        )
    entries = np.frombuffer(value, np.uint64, count, _ENTRIES.size)
    open_slots = np.frombuffer(value, np.uint32, open_count, _ENTRIES.size + 8 * count)
    return runs.with_more(BatchEntries(entries, [int(slot) for slot in open_slots]), stop)
