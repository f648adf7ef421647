from __future__ import annotations

import h11
import pytest

from tidelog_gateway.framing import StrictConnection, upgrade_fault


def request_of(head: bytes) -> h11.Request:
    connection = StrictConnection(h11.SERVER)
    connection.receive_data(head)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    return event


def read_in_pieces(connection: StrictConnection, head: bytes, size: int) -> None:
    for at in range(0, len(head), size):
        connection.receive_data(head[at : at + size])
        connection.next_event()


def test_one_way_to_say_how_long_a_body_is_passes() -> None:
    assert request_of(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n").method == b"POST"
    assert request_of(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").method == b"POST"
    assert request_of(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n").method == b"POST"


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_two_ways_do_not(head: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="length is given twice"):
        request_of(head)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n", "length is given twice"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\n", "length is given twice"),
        (b"POST / HTTP/1.1\nHost: x\nContent-Length: 2\n\n", "LF alone"),
        (b"POST / HTTP/1.1\r\nHost: x\nContent-Length: 2\r\n\r\n", "LF alone"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\n", "LF alone"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n", "folded"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tb\r\n\r\n", "folded"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", "illegal"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n", "illegal"),
        (b"\nPOST / HTTP/1.1\r\nHost: x\r\n\r\n", "LF alone"),
    ],
)
def test_a_head_that_two_parsers_read_differently_is_refused(head: bytes, why: str) -> None:
    for size in (len(head), 1):
        connection = StrictConnection(h11.SERVER)
        with pytest.raises(h11.RemoteProtocolError, match=why) as refused:
            read_in_pieces(connection, head, size)
        assert refused.value.error_status_hint == 400


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (b"0\r\n\n", "LF alone"),
        (b"0\r\nX: a\n\r\n", "LF alone"),
        (b"0\r\nX: a\r\n b\r\n\r\n", "folded"),
        (b"0\n\n", None),
        (b"0\r\nX: a\r\n\r\n", ""),
    ],
)
def test_trailers_are_judged_as_heads_are(end: bytes, why: str | None) -> None:
    connection = StrictConnection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" + end)
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.Data)
    if why:
        with pytest.raises(h11.RemoteProtocolError, match=why):
            connection.next_event()
    else:
        event = connection.next_event()
        assert event is h11.NEED_DATA if why is None else isinstance(event, h11.EndOfMessage)


@pytest.mark.parametrize(
    ("head", "behind", "fault"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 00\r\n\r\n", b"", None),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", b"", "without a body"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"", "without a body"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"", "a GET"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x81", "follows the answer"),
    ],
)
def test_what_can_become_a_websocket(head: bytes, behind: bytes, fault: str | None) -> None:
    found = upgrade_fault(request_of(head), behind)
    assert found is None if fault is None else fault in str(found)
