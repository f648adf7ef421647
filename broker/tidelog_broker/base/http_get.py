"""One GET over HTTP, for a small document: bounded in bytes and in time, whatever the other side sends.

The answer is read to its end, at most so many bytes of it, and then understood by `http.client`. Redirects are not
followed, and proxies not asked: the document comes from the address that the settings name, or not at all.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import ipaddress
import ssl
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tidelog_proto.wire.name_resolution import connected_socket

HEAD_BYTES_MAX: Final = 16 * 1024
_PIECE_BYTES: Final = 64 * 1024


def checked_url(text: str) -> SplitResult:
    """Return the parts of a URL that may be asked: https, or http to this machine.

    Raises:
        ValueError: it is another one, or has a user's name and password in it.
    """
    url = urlsplit(text)
    if url.scheme not in {"https", "http"} or not url.hostname or not text.isascii() or not text.isprintable():
        raise ValueError("a URL begins with https:// and names a host")
    if url.username is not None or url.password is not None or url.fragment or " " in text:
        raise ValueError("a URL has neither a user's name nor a fragment here")
    if url.scheme == "http" and not _is_this_machine(url.hostname):
        raise ValueError(f"http to {url.hostname} could be changed by anybody in between: give an https URL")
    _ = url.port  # raises ValueError where it is none
    return url


async def http_get(url: SplitResult, *, tls: ssl.SSLContext, bytes_max: int, timeout_s: float) -> bytes:
    """Return the document at a URL.

    Args:
        url: as `checked_url` returns it.
        tls: judges who answers at an https one.
        bytes_max: of the document.
        timeout_s: for all of it, from looking the name up to the last byte.

    Raises:
        OSError: nobody answers, not in time, not with 200, or with more than `bytes_max`. What it says is of one line.
    """
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _exchange(url, tls, HEAD_BYTES_MAX + bytes_max)
    except TimeoutError:
        raise OSError(f"no whole answer within {timeout_s:g} s") from None
    try:
        response = http.client.HTTPResponse(_Answered(answer))  # type: ignore[arg-type]  # it asks for a file only
        response.begin()
        document = response.read(bytes_max + 1)
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the answer is no HTTP: {type(error).__name__}") from None
    if response.status != http.client.OK:
        raise OSError(f"the answer has status {response.status}, not 200")
    if len(document) > bytes_max:
        raise OSError(f"the document is larger than {bytes_max} bytes")
    if response.length:
        raise OSError(f"the answer ends {response.length} bytes too soon")
    return document


async def _exchange(url: SplitResult, tls: ssl.SSLContext, bytes_max: int) -> bytes:
    is_secure = url.scheme == "https"
    host = url.hostname or ""
    connected = await connected_socket(host, url.port or (443 if is_secure else 80))
    try:
        reader, writer = await asyncio.open_connection(
            sock=connected,
            ssl=tls if is_secure else None,
            server_hostname=host if is_secure else None,
            limit=_PIECE_BYTES,
        )
    except BaseException:
        connected.close()
        raise
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        lines = (f"GET {path} HTTP/1.0", f"Host: {url.netloc}", "Accept: application/json", "Connection: close", "", "")
        writer.write("\r\n".join(lines).encode())
        answer = bytearray()
        while len(answer) <= bytes_max and (piece := await reader.read(_PIECE_BYTES)):
            answer += piece
        if len(answer) > bytes_max:
            raise OSError(f"the answer is larger than {bytes_max} bytes")
        return bytes(answer)
    finally:
        writer.transport.abort()  # whatever the other side still has to say


class _Answered:
    """What `http.client` takes for a socket: bytes that have come already."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._answer)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
