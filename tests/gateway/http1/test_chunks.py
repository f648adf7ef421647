from __future__ import annotations

import pytest

from tidelog_gateway.http1.chunks import LINE_BYTES_MAX, TRAILERS_BYTES_MAX, ChunkedBody
from tidelog_gateway.http1.head import HeadError

BODY = b"5\r\nhello\r\n00D;name=value\r\n, chunked you\r\n0\r\nX-Trailer: a\r\nContent-Length: 3\r\n\r\n"


def feed(data: bytes, size: int) -> bytes:
    """Return the body, received in pieces of `size`."""
    chunks = ChunkedBody()
    return b"".join(chunks.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(BODY)])
def test_a_body_is_decoded_in_any_pieces(size: int) -> None:
    chunks, behind = ChunkedBody(), b"GET / HTTP/1.1\r\n"
    data = BODY + behind
    got = b""
    for at in range(0, len(data), size):
        if chunks.done:
            assert data[at:] in behind
            break
        got += chunks.feed(data[at : at + size])
    assert chunks.done
    assert got == b"hello, chunked you"
    assert behind.startswith(chunks.rest)


@pytest.mark.parametrize(
    "data",
    [
        b"-1\r\n",
        b"\r\n",
        b"x\r\n",
        b"0x5\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"1" * 16 + b"\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\n\r\n",
        b"0\r\n\n",
        b"0\r\nX: a\n\r\n\r\n",
        b"0\r\nX: a\r\n b\r\n\r\n",
        b"0\r\nX : a\r\n\r\n",
        b"1;" + b"a" * LINE_BYTES_MAX,
        b"0\r\nX: " + b"a" * TRAILERS_BYTES_MAX,
    ],
)
def test_malformed_chunks_are_refused(data: bytes) -> None:
    for size in (1, len(data)):
        with pytest.raises(HeadError):
            feed(data, size)
