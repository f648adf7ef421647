"""Tiny record batches with distinct payloads: one real batch of each size is made with Arrow, the others from it.

Encoding with Arrow costs more than the simulated publish; so the body of a template gets other eight-byte values and
another CRC, which gives exactly the bytes that encoding would.

Where keys matter every record has one of a few, and the payload is the timestamp as well: that stays with a record
whatever compaction makes of its batch. Some are tombstones where that is asked for.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_proto.batch.header import BatchHeader, Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

KEYS: Final = (b"key no 0", b"key no 1", b"key no 2", b"key no 3")
"""Of keyed batches; as long as a value."""
_VALUE: Final = struct.Struct(">Q")
_PLACEHOLDER: Final = 0x5157_4552_5459_0000
_TOMBSTONE_EVERY: Final = 4


class KeyedRecord(NamedTuple):
    """A record with a key: `payload` is that of the batch that it came in."""

    offset: int
    key: bytes
    payload: int
    is_tombstone: bool


class _Template(NamedTuple):
    header: BatchHeader
    body: bytes
    values_at: int
    """Position of the first value in the body; -1 for a tombstone."""
    keys_at: int
    """Where the first key does; -1 without keys."""


@cache
def _template(records: int, *, keyed: bool, tombstone: bool = False) -> _Template:
    values = [None if tombstone else _VALUE.pack(_PLACEHOLDER + number) for number in range(records)]
    keys: list[bytes | None] = [KEYS[0]] * records
    encoded = encode_batch(columns_of(values, keys=keys if keyed else None), now_us=1)
    body = bytes(encoded.body)
    values_at = -1 if tombstone else body.index(_VALUE.pack(_PLACEHOLDER))
    return _Template(unpack_header(encoded.header), body, values_at, body.find(KEYS[0]))


def make_batch(
    payload: int,
    records: int,
    *,
    producer_id: int,
    base_sequence: int,
    producer_epoch: int = 0,
    keyed: bool = False,
    tombstones: bool = False,
) -> tuple[BatchHeader, bytearray]:
    """Return a batch of `records` records whose values are `payload`, `payload + 1`, …, as a producer sends it.

    One that is keyed has a key of `KEYS` with each, which follows from the payload. With `tombstones` some of one
    record are one.
    """
    tombstone = tombstones and records == 1 and (payload >> 4) % _TOMBSTONE_EVERY == 0
    template = _template(records, keyed=keyed, tombstone=tombstone)
    body = bytearray(template.body)
    if template.values_at >= 0:
        values = b"".join(_VALUE.pack(payload + number) for number in range(records))
        body[template.values_at : template.values_at + len(values)] = values
    if keyed:
        keys = b"".join(_key(payload, number) for number in range(records))
        body[template.keys_at : template.keys_at + len(keys)] = keys
    header = template.header._replace(
        body_crc=crc32c(body), producer_id=producer_id, base_sequence=base_sequence, producer_epoch=producer_epoch
    )
    if keyed:
        header = header._replace(base_timestamp_us=payload, max_timestamp_us=payload)
    return header, bytearray(header.pack() + body)


def batch_of(contents: tuple[int, ...], *, producer_id: int, base_sequence: int) -> tuple[BatchHeader, bytearray]:
    """Return a batch whose records have these values, as a producer sends it."""
    template = _template(len(contents), keyed=False)
    body = bytearray(template.body)
    values = b"".join(map(_VALUE.pack, contents))
    body[template.values_at : template.values_at + len(values)] = values
    header = template.header._replace(body_crc=crc32c(body), producer_id=producer_id, base_sequence=base_sequence)
    return header, bytearray(header.pack() + body)


def payload_of(data: bytes | bytearray | memoryview, records: int) -> int:
    """Return the payload of a batch that `make_batch` made."""
    header = unpack_header(data)
    if header.flags & Flags.CONTROL:
        return 0
    if header.flags & Flags.KEY:
        return header.base_timestamp_us
    return int(_VALUE.unpack_from(data, HEADER_BYTES + _template(records, keyed=False).values_at)[0])


def keys_of(data: bytes, records: int) -> list[bytes]:
    """Return the keys of a keyed batch that `make_batch` made, without tombstones."""
    at = HEADER_BYTES + _template(records, keyed=True).keys_at
    return [data[at + 8 * number :][:8] for number in range(records)]


def keyed_records(data: bytes | bytearray | memoryview) -> list[KeyedRecord]:
    """Return the records of a keyed batch, which compaction may have cut down."""
    return [
        KeyedRecord(record.offset, record.key or b"", record.timestamp_us, record.value is None)
        for record in RecordBatch.parse(data)
    ]


def _key(payload: int, number: int) -> bytes:
    return KEYS[((payload >> 4) * 7 + number) // 3 % len(KEYS)]


def is_sound(data: bytes) -> bool:
    """Whether a batch matches its header."""
    try:
        return crc32c(memoryview(data)[HEADER_BYTES:]) == unpack_header(data).body_crc
    except ProtocolError:
        return False
