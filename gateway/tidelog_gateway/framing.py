"""What in a head's framing is refused although h11 would take it.

A request that two parsers on one way can read differently lets a client hide a second request in the first
(request smuggling). h11 refuses most of it: lengths that contradict each other or are no numbers, codings other
than chunked, bytes that do not belong in a head. Left are, of RFC 9112:

- a length beside chunks, which 6.1 and 6.3 let a server refuse and demand that it closes the connection after, and
  chunks in HTTP/1.0, which 6.1 calls faulty;
- a length that is given twice, `Content-Length: 2, 2` or on two lines (6.3: refuse, or read as one);
- lines that end in LF alone (2.2: may be read as an end) and fields folded over lines (5.2: refuse, or join), both also
  in the trailers of a body in chunks.

A WebSocket's handshake has no body, is a GET, and nothing may follow before it is answered (RFC 6455, 4.1). What
comes with it would be read by another parser than the one that found its end.
"""

from __future__ import annotations

from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer  # h11 has no public way to see lines as they came


class StrictBuffer(ReceiveBuffer):
    """The receive buffer of h11, which refuses lines of heads and trailers that can be read in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self._extracted = bytearray()

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to an empty one; None while that has not come.

        Raises:
            RemoteProtocolError: as `_fault_of` says.
        """
        lines = super().maybe_extract_lines()
        if lines is not None and (fault := _fault_of(self._extracted, lines)) is not None:
            raise h11.RemoteProtocolError(fault)
        return lines

    def _extract(self, count: int) -> bytearray:
        self._extracted = super()._extract(count)
        return self._extracted


def _fault_of(extracted: bytes | bytearray, lines: list[bytearray]) -> str | None:
    """Say why lines can be read in two ways; None where they cannot."""
    if extracted.count(b"\n") != extracted.count(b"\r\n"):
        return "a line ends in LF alone: end each with CR LF"
    if any(line[:1] in {b" ", b"\t"} for line in map(bytes, lines[1:])):
        return "a field is folded over several lines: give it on one"
    fields = [line.partition(b":") for line in lines[1:]]
    lengths = [value for name, _, value in fields if name.strip().lower() == b"content-length"]
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        return "the body's length is given twice: give one Content-Length"
    return None


class StrictConnection(h11.Connection):
    """A server's side of h11 that refuses ambiguous framing as it refuses what is no HTTP."""

    def __init__(self, our_role: type[h11.SERVER]) -> None:
        super().__init__(our_role)
        self._receive_buffer = StrictBuffer()

    def next_event(self) -> Any:
        """Return the next event; see h11.

        Raises:
            RemoteProtocolError: as h11 does, and for a request whose body has two ends.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("the body's length is given twice, or in another version's way")
        return event


def upgrade_fault(event: h11.Request, behind: bytes) -> str | None:
    """Say why a request cannot become a WebSocket; None when it can.

    Args:
        event: the handshake.
        behind: what came behind its head.
    """
    if event.method != b"GET":
        return "a WebSocket begins with a GET"
    for name, value in event.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            return "a WebSocket begins with a request without a body"
    if behind:
        return "a WebSocket's first message follows the answer to its handshake"
    return None
