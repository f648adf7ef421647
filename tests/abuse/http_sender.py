"""A connection that sends HTTP requests, one after the other."""

from __future__ import annotations

import asyncio


class HttpSender:
    """See the module.

    Args:
        reader, writer: the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> HttpSender:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def ask(self, data: bytes) -> int:
        """Send a request and return the status of its answer, which is read to its end."""
        self._writer.write(data)
        # The answer is read while the request is sent: some answers begin before the request has ended.
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
        if fields.get(b"transfer-encoding") == b"chunked":
            while size := int(await self._reader.readline(), 16):
                await self._reader.readexactly(size + 2)
            await self._reader.readline()
        else:
            await self._reader.readexactly(int(fields.get(b"content-length", b"0")))
        await self._writer.drain()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        """Close at once."""
        self._writer.transport.abort()
