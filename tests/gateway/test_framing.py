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
