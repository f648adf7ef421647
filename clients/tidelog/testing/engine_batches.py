"""Batches and whole reads of a store, for `engine_suite`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from tidelog_broker.storage.engine.store import EpochStore, padded
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import FETCH_BYTES_MAX

TOPIC_ID: Final = bytes(range(16))
PARTITION: Final = 3
EPOCH: Final = 7
SEGMENT_BYTES: Final = 4096
KEYS: Final = (b"a", b"b", b"c", b"", None)


def batch(keys: Sequence[bytes | None], *, timestamp_us: int = 1, size_bytes: int = 10) -> bytearray:
    """Return a batch as a producer sends it, one record for each key."""
    columns = columns_of([b"v" * size_bytes] * len(keys), keys=keys, timestamps_us=[timestamp_us] * len(keys))
    return bytearray(encode_batch(columns, now_us=timestamp_us).to_bytes())


def random_group(random: Random) -> list[bytearray]:
    """Return a few batches of random sizes, keys and timestamps."""
    return [
        batch(
            [random.choice(KEYS) for _ in range(random.randint(1, 4))],
            timestamp_us=random.randint(1, 1000),
            size_bytes=random.randint(0, 700),
        )
        for _ in range(random.randint(1, 4))
    ]


def needed_bytes(batches: Sequence[bytes | bytearray]) -> int:
    """Return the number of bytes for which `ensure_space` must be called before the batches are appended."""
    return sum(padded(len(one)) for one in batches)


def append(store: EpochStore, batches: Sequence[bytearray]) -> list[bytes]:
    """Reserve space for batches, stamp and append them, as the log does; return the bytes of each stored batch."""
    store.ensure_space(needed_bytes(batches))
    offset, digest = store.end_offset, store.end_digest
    for one in batches:
        digest = stamp_owner(
            one, base_offset=offset, append_timestamp_us=7, epoch=EPOCH, owner_incarnation=9, previous_digest=digest
        )
        offset = unpack_header(one).end_offset
    appended = store.append(batches)
    assert (appended.end_offset, store.end_offset, store.end_digest) == (offset, offset, digest)
    return [bytes(one) for one in batches]


def read_all(store: EpochStore, *, max_bytes: int = FETCH_BYTES_MAX) -> list[bytes]:
    """Return every batch of a store, read in portions."""
    found: list[bytes] = []
    offset, end_offset = store.start_offset, store.end_offset
    while offset < end_offset:
        read = store.reader.read(offset, max_bytes, limit_offset=end_offset)
        assert read.batches, f"nothing is read at offset {offset} of {end_offset}"
        assert [unpack_header(head) for head in read.heads] == [unpack_header(one) for one in read.batches]
        found += map(bytes, read.batches)
        offset = read.next_offset
    return found


def boundaries(batches: Sequence[bytes], start: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
    """Return the offset and the digest at the start of some batches, and after each of them."""
    return [start, *((header.end_offset, header.digest) for header in map(unpack_header, batches))]


def keys_of(one: bytes) -> list[bytes | None]:
    """Return the keys of a batch."""
    return RecordBatch.parse(one).keys()
