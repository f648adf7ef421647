"""The door of a port that speaks TLS: handshakes are under way in a bounded number, and none for ever.

A connection that has not shown that it can encrypt is nobody's yet: the server hears of it when its handshake is done.
Who comes when too many handshakes are under way is let in, and one gives way as `strangers` says: who opens thousands
of connections and says nothing keeps out nobody who calls from elsewhere, however long that one's handshake takes.

A step of a handshake costs some 1 ms of the processor, and a client asks for it with a few bytes. So steps are done in
turns, address by address: an address with a thousand handshakes delays another address by one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.auth.unauthenticated_limits import Strangers
from tidelog_proto.process.fair_scheduler import Turns
from tidelog_proto.tls.stream import TlsError, TlsStream

HANDSHAKES_MAX: Final = 512


class TlsEntrance:
    """See the module.

    Args:
        context: asked for at each connection, so that newer certificates count.
        timeout_s: for a handshake.
        refusal: what is said to those who do not speak TLS.
        failed: told why, of each handshake that came to nothing.
        handshakes_max: how many may be under way.
        turns: those of the process, which steps of handshakes share with other long work; at once unless given.
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
        self._shaking = Strangers(handshakes_max)
        self._streams: set[TlsStream] = set()
        self._turns = turns
        self._steps: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """How many handshakes are."""
        return len(self._shaking)

    def admit(self, above: asyncio.BaseProtocol) -> TlsStream:
        """Return the protocol for a connection that is accepted; `above` gets it once it is encrypted."""
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
        await self._turns.piece(stream, ("handshakes", address))
        try:
            step()
        except BaseException:
            stream.abort()  # of the protocol above: as on any transport, its connection ends
            raise

    def close(self) -> None:
        """End the handshakes that are under way."""
        for stream in list(self._streams):
            stream.abort()
