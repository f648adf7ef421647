"""Tiny record batches, each with a payload of its own: one real batch a size is made with Arrow, the others from it.

Encoding with Arrow costs more than the simulated publish; so the body of a template gets other eight-byte values and
another CRC, which gives exactly the bytes that encoding would.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from crc32c import crc32c

from tidelog_proto.batch import columns_of, encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader, unpack_header
from tidelog_proto.limits import HEADER_BYTES

_VALUE: Final = struct.Struct(">Q")
_PLACEHOLDER: Final = 0x5157_4552_5459_0000


@cache
def _template(records: int) -> tuple[BatchHeader, bytes, int]:
    """Return header, body and where the first value lies in the body."""
    values: list[bytes | None] = [_VALUE.pack(_PLACEHOLDER + number) for number in range(records)]
    encoded = encode_batch(columns_of(values), now_us=1)
    body = bytes(encoded.body)
    at = body.index(_VALUE.pack(_PLACEHOLDER))
    return unpack_header(encoded.header), body, at


def make_batch(
    payload: int, records: int, *, producer_id: int, base_sequence: int, producer_epoch: int = 0
) -> tuple[BatchHeader, bytearray]:
    """Return a batch of `records` records whose values are `payload`, `payload + 1`, …, as a producer sends it."""
    template, body, at = _template(records)
    values = b"".join(_VALUE.pack(payload + number) for number in range(records))
    body = body[:at] + values + body[at + len(values) :]
    header = template._replace(
        body_crc=crc32c(body), producer_id=producer_id, base_sequence=base_sequence, producer_epoch=producer_epoch
    )
    return header, bytearray(header.pack() + body)


def payload_of(data: bytes | bytearray | memoryview, records: int) -> int:
    """Return the payload of a batch that `make_batch` made."""
    _, _, at = _template(records)
    return int(_VALUE.unpack_from(data, HEADER_BYTES + at)[0])


def is_sound(data: bytes) -> bool:
    """Whether a batch is what its header says."""
    try:
        return crc32c(memoryview(data)[HEADER_BYTES:]) == unpack_header(data).body_crc
    except ProtocolError:
        return False
