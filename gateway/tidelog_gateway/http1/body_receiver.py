"""A protocol that receives the rest of a body directly into its buffer, which saves two copies of a large body.

The event loop's transport uses this protocol instead of the connection's from the first large body of columns on,
until a request without such a body has been answered. Between two bodies it receives at most `HEAD_BYTES` at a time, so
that little of the next body arrives together with its head and has to be copied. All other events are passed to the
connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidelog_proto.limits import KIB

HEAD_BYTES: Final = 4 * KIB
_NO_PLACE: Final = memoryview(b"")


class DivertedConnection(Protocol):
    """The connection whose bodies a `BodyReceiver` receives; takes all other bytes and events."""

    def data_received(self, data: bytes) -> None:
        """Take bytes that are not received into a body's buffer."""
        ...

    def body_received(self, size_bytes: int) -> None:
        """Note the next bytes of the body, which are in the buffer."""
        ...

    def eof_received(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol
    def connection_lost(self, exc: Exception | None) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol

    def pause_writing(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol

    def resume_writing(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives bodies, and the heads between them.

    Args:
        connection: receives all other bytes and events.
    """

    def __init__(self, connection: DivertedConnection) -> None:
        self._connection = connection
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._place = _NO_PLACE

    def divert(self, place: memoryview) -> None:
        """Receive the next bytes into `place`, of exactly the missing length of a body."""
        self._place = place

    def end_diversion(self) -> None:
        """Pass further bytes to the connection, also if `place` is not full."""
        self._place = _NO_PLACE

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        """Return the unfilled part of the body's buffer, or the one for a head."""
        return self._place or self._head

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
        if self._place:
            self._place = self._place[nbytes:] or _NO_PLACE
            self._connection.body_received(nbytes)
        else:
            self._connection.data_received(bytes(self._head[:nbytes]))

    def eof_received(self) -> None:
        """Pass the event to the connection, as do the following methods."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 - see eof_received
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102 - see eof_received
        self._connection.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102 - see eof_received
        self._connection.resume_writing()
