"""Limits on TLS handshakes of a server: their number, their time, and fair use of the processor by client address.

The server's protocol gets a connection when its handshake is complete. A connection beyond the limit of handshakes is
accepted, and an older one is closed instead (see `unauthenticated_limits`), so a client that opens thousands of idle
connections does not lock out clients at other addresses.

A step of a handshake costs the server some 1 ms and the client a few bytes. Steps are therefore scheduled round robin
by address: an address with a thousand handshakes delays another address by one step.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.auth.unauthenticated_limits import UnauthenticatedConnections
from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.tls.stream import TlsError, TlsStream

HANDSHAKES_MAX: Final = 512


class TlsAcceptor:
    """Accepts TLS connections of one port.

    Args:
        context: called for each connection, so that reloaded certificates are used.
        timeout_s: limit of a handshake.
        refusal: sent to clients that do not speak TLS.
        failed: called with the error of each failed handshake.
        handshakes_max: limit of concurrent handshakes.
        turns: the process's scheduler, which orders the steps of handshakes; None runs them at once.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        timeout_s: float,
        refusal: bytes = b"",
        failed: Callable[[TlsError], None] = lambda _: None,
        handshakes_max: int = HANDSHAKES_MAX,
        turns: Turns | None = None,
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._refusal = refusal
        self._failed = failed
        self._shaking = UnauthenticatedConnections(handshakes_max)
        self._streams: set[TlsStream] = set()
        self._turns = turns
        self._steps: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """Number of handshakes in progress."""
        return len(self._shaking)

    def admit(self, above: asyncio.BaseProtocol) -> TlsStream:
        """Return the protocol for an accepted connection.

        Args:
            above: the server's protocol, which gets the connection after the handshake.
        """
        address = ""

        def called(host: str) -> None:
            nonlocal address
            address = counted_address(host)
            self._shaking.came(stream, address)

        def in_turn(step: Callable[[], None]) -> None:
            task = asyncio.create_task(self._step(stream, address, step), name="a step of a handshake")
            self._steps.add(task)
            task.add_done_callback(self._steps.discard)

        def shaken(error: TlsError | None) -> None:
            self._streams.discard(stream)
            self._shaking.left(stream)
            if error is not None:
                self._failed(error)

        stream = TlsStream(
            self._context(),
            above,
            timeout_s=self._timeout_s,
            shaken=shaken,
            called=called,
            refusal=self._refusal,
            in_turn=None if self._turns is None else in_turn,
        )
        self._streams.add(stream)
        return stream

    async def _step(self, stream: TlsStream, address: str, step: Callable[[], None]) -> None:
        assert self._turns is not None
        await self._turns.next_slice(stream, ("handshakes", address))
        try:
            step()
        except BaseException:
            stream.abort()  # A protocol's error closes its connection, as on any transport.
            raise

    def close(self) -> None:
        """Abort the handshakes in progress."""
        for stream in list(self._streams):
            stream.abort()
