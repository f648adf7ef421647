"""Detection of HTTP on an address where a node was expected, such as a gateway's or management port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_proto.wire.name_resolution import connected_socket

TRY_S: Final = 1.0


async def speaks_http(host: str, port: int) -> bool:
    """Return whether a server answers an HTTP request with HTTP; False if it does not answer within `TRY_S` seconds."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, UnicodeError):
        async with asyncio.timeout(TRY_S):
            reader, writer = await asyncio.open_connection(sock=await connected_socket(host, port))
            with contextlib.closing(writer):
                writer.write(b"HEAD /livez HTTP/1.1\r\nHost: tidelog\r\nConnection: close\r\n\r\n")
                return await reader.readexactly(5) == b"HTTP/"
    return False
