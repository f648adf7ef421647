"""Encoder of a single record without pyarrow: the same bytes as `encode_batch`, five times faster.

Arrow's metadata for a single record depends only on the lengths of its fields. So a template message is created once
for each set of fields (a value, possibly a key and a tag), and a few numbers are written into a copy of it. This is for
records that are sent alone; batches are encoded as columns (`record_batch.py`).

Rejected: a template for each length, which would need an unbounded cache.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.batch.ipc_message import BUFFER_ALIGNMENT_BYTES, PREFIX_BYTES, metadata_bytes, number_places, padded
from tidelog_proto.batch.record_batch import EncodedBatch, columns_of, encode_batch

SINGLE_BYTES_MAX: Final = 64 * 1024
"""Maximum size of key and value together; for larger records the template saves less than the extra copy costs."""

_OFFSETS: Final = struct.Struct("<ii")
_BODY_LENGTH: Final = struct.Struct("<q")
_VALUE_BUFFERS: Final = struct.Struct("<6q")
_KEYED_BUFFERS: Final = struct.Struct("<12q")
_BUFFERS_OF_COLUMNS: Final = {1: _VALUE_BUFFERS, 2: _KEYED_BUFFERS, 3: struct.Struct("<18q")}
_ALIGNMENT: Final = BUFFER_ALIGNMENT_BYTES
_PADDING: Final = [bytes(length) for length in range(_ALIGNMENT)]
_OFFSETS_BYTES: Final = _OFFSETS.size


class _Template(NamedTuple):
    """A message up to its body, and the positions of the lengths in it."""

    head: bytes
    body_length_at: int
    buffers_at: int


def encode_single(
    value: bytes,
    key: bytes | None,
    *,
    now_us: int,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    tag: bytes | None = None,
) -> EncodedBatch:
    """Encode one record without headers or compression; see `encode_batch` for the arguments.

    Args:
        value: the value; value and key together have at most `SINGLE_BYTES_MAX` bytes.
        key: None for no key.
        tag: the tag as UTF-8; None for no tag.
        now_us: the record's timestamp, µs since 1970.
        producer_id: 0 for a producer that is not idempotent.
        base_sequence: the record's sequence number.
    """
    assert len(value) + len(key or b"") <= SINGLE_BYTES_MAX
    if tag is None:
        flags, message = _untagged(value, key)
    else:
        flags, message = _tagged(value, key, tag)
    header = BatchHeader(
        flags=flags,
        body_length=len(message),
        uncompressed_length=len(message),
        record_count=1,
        body_crc=crc32c(message),
        producer_id=producer_id,
        base_sequence=base_sequence,
        producer_epoch=producer_epoch,
        base_timestamp_us=now_us,
        max_timestamp_us=now_us,
    )
    return EncodedBatch(header.pack(), memoryview(message), 1)


def _untagged(value: bytes, key: bytes | None) -> tuple[int, bytes]:
    """Return the flags and the message of a record without a tag."""
    template = _template(keyed=key is not None)
    length = len(value)
    head = bytearray(template.head)
    if key is None:
        flags = Flags.VALUE
        body_length = _OFFSETS_BYTES + padded(length)
        _VALUE_BUFFERS.pack_into(head, template.buffers_at, 0, 0, 0, _OFFSETS_BYTES, _OFFSETS_BYTES, length)
    else:
        flags = Flags.KEY | Flags.VALUE
        at = _OFFSETS_BYTES + padded(len(key))
        body_length = at + _OFFSETS_BYTES + padded(length)
        keys = (0, 0, 0, _OFFSETS_BYTES, _OFFSETS_BYTES, len(key))
        _KEYED_BUFFERS.pack_into(
            head, template.buffers_at, *keys, at, 0, at, _OFFSETS_BYTES, at + _OFFSETS_BYTES, length
        )
        head += _OFFSETS.pack(0, len(key)) + key + _PADDING[-len(key) % _ALIGNMENT]
    _BODY_LENGTH.pack_into(head, template.body_length_at, body_length)
    return flags, b"".join((head, _OFFSETS.pack(0, length), value, _PADDING[-length % _ALIGNMENT]))


def _tagged(value: bytes, key: bytes | None, tag: bytes) -> tuple[int, bytes]:
    """Return the flags and the message of a record with a tag."""
    template = _template(keyed=key is not None, tagged=True)
    numbers: list[int] = []
    parts: list[bytes] = []
    at = 0
    for field in (value, tag) if key is None else (key, value, tag):
        length = len(field)
        numbers += (at, 0, at, _OFFSETS_BYTES, at + _OFFSETS_BYTES, length)
        parts += (_OFFSETS.pack(0, length), field, _PADDING[-length % _ALIGNMENT])
        at += _OFFSETS_BYTES + padded(length)
    head = bytearray(template.head)
    _BUFFERS_OF_COLUMNS[len(parts) // 3].pack_into(head, template.buffers_at, *numbers)
    _BODY_LENGTH.pack_into(head, template.body_length_at, at)
    return Flags.VALUE | Flags.TAG | (0 if key is None else Flags.KEY), b"".join((head, *parts))


@cache
def _template(*, keyed: bool, tagged: bool = False) -> _Template:
    columns = columns_of([b"v"], keys=[b"k"] if keyed else None, tags=["t"] if tagged else None)
    message = encode_batch(columns, now_us=0).body
    head = bytes(message[: PREFIX_BYTES + metadata_bytes(message)])
    places = number_places(head[PREFIX_BYTES:])
    return _Template(head, PREFIX_BYTES + places.body_length_at, PREFIX_BYTES + places.buffers_at)
