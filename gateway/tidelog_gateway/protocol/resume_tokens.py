"""Resume tokens: the position of a subscription in each partition of its topic, as text that the client stores.

A token is URL-safe base64 without padding of: version (1 byte), topic id (16), CRC-32 of the topic's name (4) and of
the filter (4), the number of partitions, one position for each of them, and CRC-32 of all bytes before it (4). Integers
are big-endian; counts and positions are LEB128. A position is the next offset plus one; zero means a partition without
a position: it was added to the topic after the subscription began, and is read from its beginning.

A token grants no permissions: the client could name the same offsets itself. The checksum detects damage, not forgery.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog_gateway.problems import Problem
from tidelog_proto.batch.header import OFFSET_MAX
from tidelog_proto.limits import PARTITIONS_MAX

TOKEN_VERSION: Final = 1
VARINT_BYTES_MAX: Final = 10
_HEAD: Final = struct.Struct(">B16sII")
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_CHECK: Final = struct.Struct(">I")
TOKEN_BYTES_MAX: Final = _HEAD.size + 3 + VARINT_BYTES_MAX * PARTITIONS_MAX + _CHECK.size
TOKEN_CHARS_MAX: Final = -(-TOKEN_BYTES_MAX * 4 // 3)
"""Maximum length of a token: for a topic with the most partitions and the largest offsets."""


class Scope(NamedTuple):
    """The records that a subscription reads, and a token applies to: those of one topic that match a filter."""

    topic: str
    topic_id: bytes
    key: bytes | None = None
    tag: str | None = None

    def head(self) -> bytes:
        """Return the first bytes of each token of this scope."""
        return _HEAD.pack(TOKEN_VERSION, self.topic_id, zlib.crc32(self.topic.encode()), self._filter_check())

    def _filter_check(self) -> int:
        if self.key is None and self.tag is None:
            return 0
        tag = None if self.tag is None else self.tag.encode()
        parts = [b"-" if part is None else b"%d:" % len(part) + part for part in (self.key, tag)]
        return zlib.crc32(b"".join(parts))


class ResumeTokens:
    """Makes the tokens of one subscription as its positions change.

    Positions are stored encoded, so that making a token costs one join over its partitions.

    Args:
        positions: partition -> next offset.
    """

    def __init__(self, scope: Scope, positions: Mapping[int, int]) -> None:
        self._head = scope.head()
        self._parts: list[bytes] = []
        self._begin_with(0)
        for partition, next_offset in positions.items():
            self.move(partition, next_offset)

    def move(self, partition: int, next_offset: int) -> None:
        """Set the position of a partition."""
        missing = partition + 1 - len(self._parts)
        if missing > 0:
            self._parts += [b"\0"] * missing
            self._begin_with(len(self._parts))
        self._parts[partition] = varint(next_offset + 1)

    def after(self, partition: int, next_offset: int) -> str:
        """Set the position of a partition and return the token: `move` and `token` in one call."""
        parts = self._parts
        if partition >= len(parts):
            self.move(partition, next_offset)
        value, encoded = next_offset + 1, bytearray()
        while value > 0x7F:
            encoded.append(value & 0x7F | 0x80)
            value >>= 7
        encoded.append(value)
        parts[partition] = bytes(encoded)
        positions = b"".join(parts)
        data = b"%b%b%b" % (self._begin, positions, zlib.crc32(positions, self._begin_check).to_bytes(4, "big"))
        return binascii.b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()

    def _begin_with(self, partitions: int) -> None:
        """Cache the first bytes of tokens with this number of partitions."""
        self._begin = self._head + varint(partitions)
        self._begin_check = zlib.crc32(self._begin)

    def token(self) -> str:
        """Return the token of the current positions."""
        positions = b"".join(self._parts)
        data = b"%b%b%b" % (self._begin, positions, zlib.crc32(positions, self._begin_check).to_bytes(4, "big"))
        return binascii.b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()


def positions_in(token: str, scope: Scope) -> dict[int, int]:
    """Return the positions of a token: partition -> next offset, without partitions to be read from their beginning.

    Args:
        token: a token as a client sent it.
        scope: scope of the subscription that is to continue.

    Raises:
        Problem: 422 `invalid_resume_token` if the token is damaged, of an unknown version, or of another topic or
            filter; 410 `topic_recreated` if the topic was deleted and created again since.
    """
    data = _checked(token)
    _, topic_id, name_check, filter_check = _HEAD.unpack_from(data)
    expected = _HEAD.unpack(scope.head())
    if name_check != expected[2]:
        raise _invalid(f"it belongs to another topic than {scope.topic!r}; send a token of this topic, or none")
    if topic_id != scope.topic_id:
        raise Problem(
            410,
            "topic_recreated",
            f"topic {scope.topic!r} was deleted and created again since this resume_token was made, so its positions "
            'are not valid in the new topic; subscribe without resume_token, with "from":"earliest" to read all of it',
        )
    if filter_check != expected[3]:
        raise _invalid(
            "it belongs to a subscription with another key or tag; use the same key and tag, or send no token"
        )
    return _positions(data)


def _checked(token: str) -> bytes:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if data and data[0] != TOKEN_VERSION:
        raise _invalid(
            f"its version is {data[0]}, and this gateway supports version {TOKEN_VERSION}; send the text exactly as a "
            "gateway sent it, or update this gateway"
        )
    is_whole = len(data) > _HEAD.size + _CHECK.size
    if not is_whole or zlib.crc32(data[: -_CHECK.size]) != _CHECK.unpack(data[-_CHECK.size :])[0]:
        raise _invalid("it is damaged; send the text exactly as a gateway sent it, or subscribe without it")
    return data


def _positions(data: bytes) -> dict[int, int]:
    at, values, value, shift = _HEAD.size, list[int](), 0, 0
    for byte in data[at : -_CHECK.size]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
        elif shift >= 7 * VARINT_BYTES_MAX:
            raise _invalid("it is damaged; send the text exactly as a gateway sent it, or subscribe without it")
    count, *stored = values or [0]
    if shift or count != len(stored) or count > PARTITIONS_MAX or max(stored, default=0) > OFFSET_MAX + 1:
        raise _invalid("it is damaged; send the text exactly as a gateway sent it, or subscribe without it")
    return {partition: each - 1 for partition, each in enumerate(stored) if each}


def varint(value: int) -> bytes:
    """Return a number as LEB128."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _invalid(why: str) -> Problem:
    errors = [{"pointer": "/sub/resume_token", "detail": why}]
    return Problem(422, "invalid_resume_token", f"resume_token cannot be used: {why}", extra={"errors": errors})
