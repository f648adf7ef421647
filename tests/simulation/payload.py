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
from tidelog_proto.header import BatchHeader, Flags, unpack_header
from tidelog_proto.limits import HEADER_BYTES

_VALUE: Final = struct.Struct(">Q")
_FLAGS: Final = struct.Struct("<8xI")
KEYS: Final = (b"key no 0", b"key no 1", b"key no 2", b"key no 3")
"""Of keyed batches; as long as a value."""
_PLACEHOLDER: Final = 0x5157_4552_5459_0000


@cache
def _template(records: int, *, keyed: bool) -> tuple[BatchHeader, bytes, int, int]:
    """Return header, body and where the first value and the first key lie in the body; -1 without keys."""
    values: list[bytes | None] = [_VALUE.pack(_PLACEHOLDER + number) for number in range(records)]
    keys: list[bytes | None] = [KEYS[0]] * records
    encoded = encode_batch(columns_of(values, keys=keys if keyed else None), now_us=1)
    body = bytes(encoded.body)
    return unpack_header(encoded.header), body, body.index(_VALUE.pack(_PLACEHOLDER)), body.find(KEYS[0])


def _is_keyed(data: bytes | bytearray | memoryview) -> bool:
    return bool(_FLAGS.unpack_from(data)[0] & Flags.KEY)


def make_batch(
    payload: int,
    records: int,
    *,
    producer_id: int,
    base_sequence: int,
    producer_epoch: int = 0,
    keyed: bool = False,
) -> tuple[BatchHeader, bytearray]:
    """Return a batch of `records` records whose values are `payload`, `payload + 1`, …, as a producer sends it.

    One that is keyed has a key of `KEYS` with each, which follows from the payload.
    """
    template, body, at, keys_at = _template(records, keyed=keyed)
    if keyed:
        keys = b"".join(_key(payload, number) for number in range(records))
        body = body[:keys_at] + keys + body[keys_at + len(keys) :]
    values = b"".join(_VALUE.pack(payload + number) for number in range(records))
    body = body[:at] + values + body[at + len(values) :]
    header = template._replace(
        body_crc=crc32c(body), producer_id=producer_id, base_sequence=base_sequence, producer_epoch=producer_epoch
    )
    return header, bytearray(header.pack() + body)


def payload_of(data: bytes | bytearray | memoryview, records: int) -> int:
    """Return the payload of a batch that `make_batch` made."""
    _, _, at, _ = _template(records, keyed=_is_keyed(data))
    return int(_VALUE.unpack_from(data, HEADER_BYTES + at)[0])


def keys_of(data: bytes, records: int) -> list[bytes]:
    """Return the keys of a keyed batch that `make_batch` made."""
    _, _, _, at = _template(records, keyed=True)
    assert _is_keyed(data)
    return [data[HEADER_BYTES + at + 8 * number :][:8] for number in range(records)]


def _key(payload: int, number: int) -> bytes:
    return KEYS[((payload >> 4) * 7 + number) // 3 % len(KEYS)]


def is_sound(data: bytes) -> bool:
    """Whether a batch is what its header says."""
    try:
        return crc32c(memoryview(data)[HEADER_BYTES:]) == unpack_header(data).body_crc
    except ProtocolError:
        return False
