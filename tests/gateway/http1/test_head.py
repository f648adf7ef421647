from __future__ import annotations

import pytest

from tidelog_gateway.http1.head import (
    CHUNKED,
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    HeadError,
    HeadParser,
    early_fault,
    parse_head,
    upgrade_fault,
)


def head_of(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


def test_a_head_is_parsed() -> None:
    head = parse_head(
        head_of(b"POST /a?b=c HTTP/1.1", b"Host: x", b"X-Empty:", b"Content-Length:\t12 ", b"x-y: \xe9:z")
    )
    assert (head.method, head.target, head.version) == (b"POST", b"/a?b=c", "1.1")
    assert head.headers == [(b"host", b"x"), (b"x-empty", b""), (b"content-length", b"12"), (b"x-y", b"\xe9:z")]
    assert (head.length, head.keep_alive, head.expects_continue, head.upgrade) == (12, True, False, b"")


def test_fields_determine_connection_attributes() -> None:
    first = b"GET / HTTP/1.1", b"Host: x"
    assert not parse_head(head_of(*first, b"Connection: a, Close")).keep_alive
    assert not parse_head(head_of(b"GET / HTTP/1.0", b"Connection: keep-alive")).keep_alive
    assert parse_head(head_of(*first, b"Expect: 100-Continue")).expects_continue
    assert parse_head(head_of(*first, b"Transfer-Encoding: Chunked")).length == CHUNKED
    assert (
        parse_head(head_of(*first, b"Upgrade: WebSocket", b"Connection: keep-alive, Upgrade")).upgrade == b"websocket"
    )
    assert parse_head(head_of(*first, b"Upgrade: websocket")).upgrade == b"", "Connection does not list Upgrade"


def test_cached_fields_give_the_same_head() -> None:
    parser = HeadParser()
    fields = b"Host: x", b"Content-Length: 3", b"Connection: close"
    heads = [
        head_of(b"POST /a HTTP/1.1", *fields),
        head_of(b"PUT /b HTTP/1.1", *fields),
        head_of(b"PUT /b HTTP/1.0", *fields),
        head_of(b"PUT /b HTTP/1.1", *fields[:1]),
        head_of(b"GET /b HTTP/1.1", *fields[:1]),
    ]
    for head in heads:
        parsed = parser.parse(head)
        assert parsed == parse_head(head)
        parsed.headers.clear()
        parsed = parser.parse(head)
        parsed.headers.append((b"x", b"y"))
    with pytest.raises(HeadError):
        parser.parse(head_of(b"PUT  /b HTTP/1.1", *fields[:1]))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: 2, 2"), "has the body's length twice"),
        (
            head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: 2", b"content-length: 2"),
            "has the body's length twice",
        ),
        (
            head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
            "both Content-Length and Transfer-Encoding",
        ),
        (head_of(b"POST / HTTP/1.0", b"Transfer-Encoding: chunked"), "HTTP/1.0 has no Transfer-Encoding"),
        (
            head_of(b"POST / HTTP/1.1", b"Host: x", b"Transfer-Encoding: gzip, chunked"),
            "must be chunked and nothing else",
        ),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Transfer-Encoding: identity"), "must be chunked and nothing else"),
        (
            head_of(b"POST / HTTP/1.1", b"Host: x", *[b"Transfer-Encoding: chunked"] * 2),
            "must be chunked and nothing else",
        ),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: +2"), "Content-Length must be a number of bytes"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: 0x2"), "Content-Length must be a number of bytes"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length:"), "Content-Length must be a number of bytes"),
        (
            head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length: " + b"9" * 19),
            "Content-Length must be a number of bytes",
        ),
        (b"POST / HTTP/1.1\nHost: x\nContent-Length: 2\n\r\n\r\n", "LF alone"),
        (b"POST / HTTP/1.1\r\nHost: x\nContent-Length: 2\r\n\r\n", "LF alone"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"X: a", b" b"), "folded"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"X: a", b"\tb"), "folded"),
        (head_of(b"POST / HTTP/1.1", b" Host: x"), "folded"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"X: a\rb"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"X: a\0b"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"X: a\x7fb"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"Content-Length : 2"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b": 2"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/1.1", b"Host: x", b"no colon"), "NAME: VALUE"),
        (head_of(b"POST / HTTP/2.0", b"Host: x"), "METHOD TARGET"),
        (head_of(b"POST /\xc3\xa9 HTTP/1.1", b"Host: x"), "METHOD TARGET"),
        (head_of(b"POST  / HTTP/1.1", b"Host: x"), "METHOD TARGET"),
        (head_of(b"POST / HTTP/1.1 ", b"Host: x"), "METHOD TARGET"),
        (head_of(b"", b"POST / HTTP/1.1", b"Host: x"), "METHOD TARGET"),
        (head_of(b"GET / HTTP/1.1"), "one Host"),
        (head_of(b"GET / HTTP/1.1", b"Host: x", b"host: x"), "one Host"),
        (head_of(b"GET / HTTP/1.1", b"Host: x", *[b"X: y"] * FIELDS_MAX), "fields"),
    ],
)
def test_an_ambiguous_head_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(HeadError, match=why):
        parse_head(head)


def test_an_incomplete_head_is_refused_when_it_is_already_invalid() -> None:
    whole = head_of(b"GET / HTTP/1.1", b"Host: x")
    assert not any(early_fault(whole[:size]) for size in range(1, len(whole)))
    for data, why in (
        (b"\x16\x03", "control character"),
        (b"\r\n", "control character"),
        (b"GET / HTTP/1.1\n", "LF alone"),
    ):
        assert why in str(early_fault(data))
    assert "bytes" in str(early_fault(b"G" * (HEAD_BYTES_MAX + 1)))


@pytest.mark.parametrize(
    ("head", "behind", "fault"),
    [
        (head_of(b"GET / HTTP/1.1", b"Host: x", b"Content-Length: 00"), b"", None),
        (head_of(b"GET / HTTP/1.1", b"Host: x", b"Content-Length: 10"), b"", "must have no body"),
        (head_of(b"GET / HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked"), b"", "must have no body"),
        (head_of(b"POST / HTTP/1.1", b"Host: x"), b"", "a GET request"),
        (head_of(b"GET / HTTP/1.1", b"Host: x"), b"\x81", "before the answer"),
    ],
)
def test_websocket_handshakes_are_validated(head: bytes, behind: bytes, fault: str | None) -> None:
    found = upgrade_fault(parse_head(head), behind)
    assert found is None if fault is None else fault in str(found)
