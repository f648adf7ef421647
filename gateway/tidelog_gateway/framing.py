"""What in a head's framing is refused although h11 would take it.

A request that two parsers on one way can read differently lets a client hide a second request in the first
(request smuggling). h11 refuses most of it: lengths that contradict each other or are no numbers, codings other
than chunked, bytes that do not belong in a head. Left are a length beside chunks, which RFC 9112 (6.1, 6.3) lets a
server refuse and demands that it closes the connection after, and chunks in HTTP/1.0, which it calls faulty.

A WebSocket's handshake has no body, is a GET, and nothing may follow before it is answered (RFC 6455, 4.1). What
comes with it would be read by another parser than the one that found its end.
"""

from __future__ import annotations

from typing import Any

import h11


class StrictConnection(h11.Connection):
    """A server's side of h11 that refuses ambiguous bodies as it refuses what is no HTTP."""

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
