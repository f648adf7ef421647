"""Probes of live delivery below the framework: a WebSocket server that only writes frames to all clients.

The server is uvicorn with the event loop and the protocol of the gateway. One connection, the feed, determines the
frames that all others receive, without credits, positions or limits.

- The text `relay TEXT` on a WebSocket to `/feed` is broadcast once.
- The text `repeat RATE COUNT TEXT` on it is broadcast COUNT times, RATE times a second, from memory.
- A TCP connection to the second port sends what a node sends to a gateway: frames with a MESSAGE_EVENT and a record
  batch. Each frame becomes one JSON text (`Translator`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa
import uvicorn
from crc32c import crc32c
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from tidelog_loadtest.measure.steady_rate import at_rate
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import stored_schema_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import FRAME_PREFIX_BYTES, HEADER_BYTES

_PREFIX: Final = struct.Struct("<II")
TOKEN: Final = b"A" * 64
_TRANSPORTS: Final[set[asyncio.Transport]] = set()


class BroadcastProtocol(WebSocketsSansIOProtocol):
    """One WebSocket; if it is not the feed, it receives the broadcasts."""

    def handle_connect(self, event: Any) -> None:
        """Add the transport of a WebSocket that begins its handshake."""
        super().handle_connect(event)
        if event.path != "/feed":
            _TRANSPORTS.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the transport."""
        _TRANSPORTS.discard(self.transport)
        super().connection_lost(exc)


class Translator(asyncio.Protocol):
    """Broadcasts the records of each batch that a node sends as JSON, with the least necessary work.

    The envelope is parsed, both checksums of the batch are compared, its Arrow message is read, and its values are
    written into a template. Values are ASCII text without escapes, and there are no other columns.

    Args:
        broadcast: called with each WebSocket frame.
    """

    def __init__(self, broadcast: Callable[[bytes], None]) -> None:
        self._received = b""
        self._broadcast = broadcast

    def data_received(self, data: bytes) -> None:
        """Broadcast the complete frames among the received bytes."""
        if self._received:
            data = self._received + data
        at = 0
        while len(data) - at >= FRAME_PREFIX_BYTES:
            frame_bytes, envelope_bytes = _PREFIX.unpack_from(data, at)
            end = at + 4 + frame_bytes
            if end > len(data):
                break
            batch_at = at + FRAME_PREFIX_BYTES + envelope_bytes
            envelope = pb.Envelope.FromString(data[at + FRAME_PREFIX_BYTES : batch_at])
            self._broadcast(translated_frame(envelope.message_event.partition, memoryview(data)[batch_at:end]))
            at = end
        self._received = data[at:]


def translated_frame(partition: int, batch: memoryview) -> bytes:
    """Return the WebSocket frame of a batch."""
    header, body = unpack_header(batch), batch[HEADER_BYTES:]
    if (found_crc := crc32c(body)) != header.body_crc:
        raise ValueError(
            f"a batch header declares CRC32C {header.body_crc:#010x} for the body, its bytes have {found_crc:#010x}"
        )
    columns = pa.ipc.read_record_batch(pa.py_buffer(body), stored_schema_of(header.flags))
    values: list[Any] = columns.column(0).to_pylist()
    row = b'{"offset":%%d,"timestamp_ms":%d,"key":null,"value":"%%b","value_encoding":"utf8"}' % (
        header.base_timestamp_us // 1000
    )
    filling: list[Any] = [None] * (2 * len(values))
    filling[::2] = range(header.base_offset, header.end_offset)
    filling[1::2] = values
    text = b'{"batch":{"sid":1,"partition":%d,"records":[%b],"next_offset":%d,"resume_token":"%b"}}' % (
        partition,
        b",".join([row] * len(values)) % tuple(filling),
        header.end_offset,
        TOKEN,
    )
    size_bytes = len(text)
    if size_bytes < 126:
        return b"\x81%c%b" % (size_bytes, text)
    if size_bytes < 1 << 16:
        return b"\x81\x7e%b%b" % (size_bytes.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size_bytes.to_bytes(8, "big"), text)


async def application(_: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket and broadcast what it sends."""
    while True:
        event = await receive()
        if event["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        elif event["type"] == "websocket.receive":
            kind, _, rest = event["text"].partition(" ")
            if kind == "relay":
                _broadcast(_frame(rest))
            else:
                rate, count, text = rest.split(" ", 2)
                await at_rate(float(rate), int(count), partial(_broadcast_again, _frame(text)))
        else:
            return


def _frame(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


def _broadcast(frame: bytes) -> None:
    for transport in _TRANSPORTS:
        transport.write(frame)


async def _broadcast_again(frame: bytes) -> None:
    _broadcast(frame)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        assert sockets is not None
        loop = asyncio.get_running_loop()
        self._feed = await loop.create_server(lambda: Translator(_broadcast), "127.0.0.1", 0)
        ports = {"http_port": sockets[0].getsockname()[1], "feed_port": self._feed.sockets[0].getsockname()[1]}
        sys.stdout.write(json.dumps({"event": "ready", **ports}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run the probe as a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application,
            loop="uvloop",
            ws=BroadcastProtocol,
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        _Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
