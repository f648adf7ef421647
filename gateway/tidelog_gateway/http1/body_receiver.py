"""A protocol that receives the rest of a body directly into its buffer, which saves two copies of a large body.

The event loop's transport uses this protocol instead of the connection's until the last byte of the body, or until the
diversion ends earlier. All other events are passed to the connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class DivertedConnection(Protocol):
    """The connection whose body is received."""

    def body_received(self, size_bytes: int) -> None:
        """Note the next bytes of the body, which are in the buffer."""
        ...

    def eof_received(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol
    def connection_lost(self, exc: Exception | None) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol

    def pause_writing(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol

    def resume_writing(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives one body.

    Args:
        connection: receives all other events.
        place: buffer of exactly the missing bytes; bytes after the body are not received.
    """

    def __init__(self, connection: DivertedConnection, place: memoryview) -> None:
        self._place = place
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        """Return the unfilled part of the buffer."""
        return self._place

    def buffer_updated(self, nbytes: int) -> None:
        """Note received bytes."""
        self._place = self._place[nbytes:]
        self._connection.body_received(nbytes)

    def eof_received(self) -> None:
        """Pass the event on, like the methods that follow."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 - see eof_received
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102 - see eof_received
        self._connection.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102 - see eof_received
        self._connection.resume_writing()
