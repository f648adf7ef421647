"""Receives the rest of a body straight into its place, which saves two copies of a large one.

While it does, the event loop's transport has this protocol instead of the connection's. It is told everything else that
happens to the connection, and becomes its protocol again with the last byte of the body, or before.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class DivertedConnection(Protocol):
    """The connection whose body is received."""

    def body_received(self, size_bytes: int) -> None:
        """Take note of the next bytes of the body, which are in their place."""
        ...

    def eof_received(self) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol
    def connection_lost(self, exc: Exception | None) -> None: ...  # noqa: D102 - see asyncio.BufferedProtocol

    def pause_writing(self) -> None: ...  # noqa: D102 - as said above

    def resume_writing(self) -> None: ...  # noqa: D102 - as said above


class BodyReceiver(asyncio.BufferedProtocol):
    """See the module.

    Args:
        connection: told of everything.
        place: of the bytes that are to come, exactly as many; no byte behind them is received.
    """

    def __init__(self, connection: DivertedConnection, place: memoryview) -> None:
        self._place = place
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        """Return where the next bytes go."""
        return self._place

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes."""
        self._place = self._place[nbytes:]
        self._connection.body_received(nbytes)

    def eof_received(self) -> None:
        """Hand on; as do the methods that follow."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 - as said above
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102 - as said above
        self._connection.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102 - as said above
        self._connection.resume_writing()
