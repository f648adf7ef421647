"""Sender of a WebSocket's messages, one at a time, each counted in the response budget.

A message is built only after most of the previous ones have left the transport, so a connection holds one message,
regardless of the number of its subscriptions. The maximum size of a message is reserved before it is built; its actual
size is counted until it was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.feed.ring import EntryEncoder, RingEntry
from tidelog_gateway.protocol.codecs import Codec
from tidelog_gateway.protocol.json_codec import JSON

_LENGTH_16: Final = 126
"""Payload length in a frame header that announces 2 bytes of length; 127 announces 8 bytes (RFC 6455, 5.2)."""


_REASON_BYTES_MAX: Final = 123
"""Maximum size of the reason in a close frame (RFC 6455, 5.5)."""
_CUT: Final = "…"


class SlowClientError(Exception):
    """Raised if the client left a message unread for too long."""


class MessageSender(Protocol):
    """Sends the messages of `Delivery` over one connection, which is a WebSocket or an event stream."""

    outlet: ConnectionOutput

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        ...

    async def send_made(self, size_bytes_max: int, make: Callable[[], Mapping[str, Any]]) -> None:
        """Reserve memory for a message, then call `make` and send the message that it returns."""
        ...

    def entry_encoder(self, sid: int) -> EntryEncoder:
        """Return the encoding of a feed's entries for a subscription of this connection."""
        ...


@dataclass(frozen=True, slots=True)
class FrameEncoder:
    """Encodes an entry as the WebSocket frame of a batch message, without masking and compression."""

    sid: int
    surface: str = "websocket"
    always_token: bool = False

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        """Return the frame."""
        _, _, next_offset, _, _, records = entry
        begin = b'{"batch":{"sid":%d,"partition":%d,"records":' % (self.sid, entry.partition)
        member = b"" if token is None else b',"resume_token":"%b"' % token.encode()
        end = b',"next_offset":%d%b}}' % (next_offset, member)
        size_bytes = len(begin) + len(records) + len(end)
        if size_bytes < _LENGTH_16:
            head = b"\x81%c" % size_bytes
        elif size_bytes < 1 << 16:
            head = b"\x81\x7e" + size_bytes.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size_bytes.to_bytes(8, "big")
        return b"".join((head, begin, records, end))


class Sender:
    """Sends the messages of one connection."""

    def __init__(
        self, socket: WebSocket, outlet: ConnectionOutput, *, slow_timeout_s: float, codec: Codec = JSON
    ) -> None:
        self.outlet = outlet
        self._codec = codec
        self._socket = socket
        self._slow_timeout_s = slow_timeout_s
        self._turn = asyncio.Lock()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message.

        Raises:
            SlowClientError: the client has not read earlier messages in time.
            WebSocketDisconnect: the client has disconnected.
        """
        data = self._codec.encode(message)
        await self._send(len(data), lambda: data)

    async def send_made(self, size_bytes_max: int, make: Callable[[], Mapping[str, Any]]) -> None:
        """Reserve memory for a message, then call `make` and send the message that it returns.

        Raises:
            SlowClientError, WebSocketDisconnect: as `send`.
        """
        await self._send(size_bytes_max, lambda: self._codec.encode(make()))

    def entry_encoder(self, sid: int) -> EntryEncoder:
        """Return the encoding of a feed's entries for a subscription of this connection."""
        return FrameEncoder(sid)

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket. A reason that does not fit into a close frame is cut off.

        Raises:
            WebSocketDisconnect: the client has disconnected.
        """
        self._check_connected()
        if len(reason.encode()) > _REASON_BYTES_MAX:
            reason = reason.encode()[: _REASON_BYTES_MAX - len(_CUT.encode())].decode(errors="ignore") + _CUT
        await self._socket.close(code, reason)

    def _check_connected(self) -> None:
        # Starlette raises WebSocketDisconnect for the first send after a disconnect only, then RuntimeError.
        if self._socket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(1006)

    async def _send(self, size_bytes_max: int, make: Callable[[], bytes]) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(self._slow_timeout_s):
                    await self.outlet.room()
            except TimeoutError as error:
                raise SlowClientError from error
            held_bytes = size_bytes_max
            await self.outlet.wait_for_room(held_bytes)
            try:
                self._check_connected()
                data = make()
                surplus_bytes = held_bytes - len(data)
                if surplus_bytes > 0:
                    self.outlet.give_back(surplus_bytes)
                    held_bytes = len(data)
                await self._codec.send(self._socket, data)
            except BaseException:
                self.outlet.give_back(held_bytes)
                raise
            self.outlet.sent(held_bytes)
