"""A chunked body (RFC 9112, 7.1), parsed strictly: only CR LF ends a line."""

from __future__ import annotations

import re
from typing import Final

from tidelog_gateway.http1.head import HeadError, early_fault, fields_fault

LINE_BYTES_MAX: Final = 4096
"""Maximum length of a line with a chunk's size and extensions."""
TRAILERS_BYTES_MAX: Final = 16 * 1024
_SHOWN_BYTES: Final = 60
"""Maximum length of a chunk size that a message quotes."""

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class ChunkedBody:
    """Decodes one body; its trailers are checked and dropped.

    Attributes:
        done: whether the body is complete.
        rest: the bytes after the body, or the beginning of an incomplete line.
    """

    __slots__ = ("_left_bytes", "_reads_trailers", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._left_bytes = 0
        """Missing bytes of the current chunk, with its CR LF."""
        self._reads_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Take received bytes and return the part of the body in them.

        Raises:
            HeadError: the chunked coding is invalid.
        """
        data = self.rest + data if self.rest else data
        at, parts = 0, list[bytes]()
        while not self.done:
            if self._left_bytes:
                at = self._chunk(data, at, parts)
                if self._left_bytes:
                    break
                continue
            end = self._trailers(data, at) if self._reads_trailers else self._size(data, at)
            if end is None:
                break
            at = end
        self.rest = data[at:]
        return b"".join(parts)

    def _chunk(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Read the received part of the chunk; return its end."""
        content = data[at : at + max(0, self._left_bytes - 2)]
        if content:
            parts.append(content)
            at += len(content)
            self._left_bytes -= len(content)
        if self._left_bytes <= 2 and at < len(data):
            expected = b"\r\n"[-self._left_bytes :]
            end = data[at : at + self._left_bytes]
            if not expected.startswith(end):
                raise HeadError(f"a chunk must end with CR LF after its announced size, got {end.decode('latin-1')!r}")
            at += len(end)
            self._left_bytes -= len(end)
        return at

    def _size(self, data: bytes, at: int) -> int | None:
        """Read the line with the next chunk's size; return its end, None if it is incomplete."""
        end = data.find(b"\r\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            if b"\n" in data[at : at + LINE_BYTES_MAX]:
                raise HeadError("the line with a chunk's size ends in LF alone; end it with CR LF")
            if len(data) - at >= LINE_BYTES_MAX:
                raise HeadError(
                    f"the line with a chunk's size has more than {LINE_BYTES_MAX} bytes; omit chunk extensions"
                )
            return None
        match = _SIZE.fullmatch(data, at, end)
        if match is None:
            size = data[at : min(end, at + _SHOWN_BYTES)].decode("latin-1")
            raise HeadError(f"a chunk's size must be up to 15 hexadecimal digits, got {size!r}")
        size_bytes = int(match[1], 16)
        self._left_bytes = size_bytes + 2 if size_bytes else 0
        self._reads_trailers = not size_bytes
        return end + 2

    def _trailers(self, data: bytes, at: int) -> int | None:
        """Read the trailers; return their end, None if they are incomplete."""
        if data.startswith(b"\r\n", at):
            end = at
        else:
            blank_at = data.find(b"\r\n\r\n", at, at + TRAILERS_BYTES_MAX)
            if blank_at < 0:
                left = data[at:]
                if len(left) >= TRAILERS_BYTES_MAX or (left and left != b"\r" and early_fault(left)):
                    too_long = f"the trailers have more than {TRAILERS_BYTES_MAX} bytes; send fewer or shorter fields"
                    raise HeadError(early_fault(left) or too_long)
                return None
            end = blank_at + 2
        fault = fields_fault(data[at : end + 2])
        if fault is not None:
            raise HeadError(fault)
        self.done = True
        return end + 2
