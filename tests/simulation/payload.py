"""Tiny record batches, each with a payload of its own: one real batch a size is made with Arrow, the others from it.

Encoding with Arrow costs more than the simulated publish; so the body of a template gets other eight-byte values and
another CRC, which gives exactly the bytes that encoding would.

Where compaction is simulated every record has a key of a few, some are tombstones, and the payload is the timestamp as
well: that stays with a record whatever becomes of its batch.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_proto.batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader, Flags, unpack_header
from tidelog_proto.limits import HEADER_BYTES

KEYS: Final = 5
_VALUE: Final = struct.Struct(">Q")
_PLACEHOLDER: Final = 0x5157_4552_5459_0000
_KEY_PLACEHOLDER: Final = 0x4B45_594B_4559_0000
_TOMBSTONE_EVERY: Final = 4


class KeyedRecord(NamedTuple):
    """A record with a key: `payload` is that of the batch that it came in."""

    offset: int
    key: int
    payload: int
    is_tombstone: bool


class _Template(NamedTuple):
    header: BatchHeader
    body: bytes
    values_at: int
    """Where the first value lies in the body; -1 for a tombstone."""
    keys_at: int
    """Where the first key does; -1 without keys."""


@cache
def _template(records: int, *, keyed: bool, tombstone: bool = False) -> _Template:
    values = [None if tombstone else _VALUE.pack(_PLACEHOLDER + number) for number in range(records)]
    keys: list[bytes | None] = [_VALUE.pack(_KEY_PLACEHOLDER + number) for number in range(records)]
    encoded = encode_batch(columns_of(values, keys=keys if keyed else None), now_us=1)
    body = bytes(encoded.body)
    values_at = -1 if tombstone else body.index(_VALUE.pack(_PLACEHOLDER))
    return _Template(
        unpack_header(encoded.header), body, values_at, body.index(_VALUE.pack(_KEY_PLACEHOLDER)) if keyed else -1
    )


def make_batch(
    payload: int,
    records: int,
    *,
    producer_id: int,
    base_sequence: int,
    producer_epoch: int = 0,
    keyed: bool = False,
) -> tuple[BatchHeader, bytearray]:
    """Return a batch of `records` records whose values are `payload`, `payload + 1`, …, as a producer sends it."""
    number = payload >> 4
    tombstone = keyed and records == 1 and number % _TOMBSTONE_EVERY == 0
    template = _template(records, keyed=keyed, tombstone=tombstone)
    body = bytearray(template.body)
    for at, first in ((template.values_at, payload), (template.keys_at, -1)):
        if at >= 0:
            numbers = [first + each if first >= 0 else (number + each) % KEYS for each in range(records)]
            body[at : at + 8 * records] = b"".join(map(_VALUE.pack, numbers))
    header = template.header._replace(
        body_crc=crc32c(body), producer_id=producer_id, base_sequence=base_sequence, producer_epoch=producer_epoch
    )
    if keyed:
        header = header._replace(base_timestamp_us=payload, max_timestamp_us=payload)
    return header, bytearray(header.pack() + body)


def payload_of(data: bytes | bytearray | memoryview, records: int) -> int:
    """Return the payload of a batch that `make_batch` made."""
    header = unpack_header(data)
    if header.flags & Flags.KEY:
        return header.base_timestamp_us
    return int(_VALUE.unpack_from(data, HEADER_BYTES + _template(records, keyed=False).values_at)[0])


def keyed_records(data: bytes | bytearray | memoryview) -> list[KeyedRecord]:
    """Return the records of a batch, which compaction may have cut down."""
    return [
        KeyedRecord(record.offset, _VALUE.unpack(record.key or b"")[0], record.timestamp_us, record.value is None)
        for record in RecordBatch.parse(data)
    ]


def is_sound(data: bytes) -> bool:
    """Whether a batch is what its header says."""
    try:
        return crc32c(memoryview(data)[HEADER_BYTES:]) == unpack_header(data).body_crc
    except ProtocolError:
        return False
