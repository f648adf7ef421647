"""HTTP GET of a small document, with limits on size and time.

The answer is read to its end, up to the limit, and then parsed by `http.client`. Redirects and proxies are not used:
the document comes from the address in the settings or not at all.
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
_CHUNK_BYTES: Final = 64 * 1024


def checked_url(text: str) -> SplitResult:
    """Parse a URL that may be requested: https, or http to this machine.

    Raises:
        ValueError: the text is not such a URL, or contains a user name, a fragment or spaces.
    """
    url = urlsplit(text)
    if url.username is not None or url.password is not None or url.fragment or " " in text:
        raise ValueError("a URL must not contain a user name, a password, a fragment or spaces")
    if url.scheme not in {"https", "http"} or not url.hostname or not text.isascii() or not text.isprintable():
        raise ValueError(
            "a URL must begin with https:// (or http://, for this machine only), name a host and contain only "
            f"printable ASCII characters, got {text[:200]!r}"
        )
    if url.scheme == "http" and not _is_this_machine(url.hostname):
        raise ValueError(f"http to {url.hostname} does not protect the answer against tampering; use an https URL")
    _ = url.port  # raises ValueError if it is invalid
    return url


async def http_get(url: SplitResult, *, tls: ssl.SSLContext, bytes_max: int, timeout_s: float) -> bytes:
    """Return the document at a URL.

    Args:
        url: a result of `checked_url`.
        tls: verifies the server of an https URL.
        timeout_s: maximum time of the whole request, including name resolution.

    Raises:
        OSError: the connection failed, no complete and valid answer arrived within `timeout_s`, its status is not 200,
            or the document is larger than `bytes_max`. The message has one line.
    """
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _exchange(url, tls, HEAD_BYTES_MAX + bytes_max)
    except TimeoutError:
        raise OSError(f"no complete answer within {timeout_s:g} s") from None
    try:
        response = http.client.HTTPResponse(_BufferedSocket(answer))  # type: ignore[arg-type]  # a stand-in for a socket
        response.begin()
        document = response.read(bytes_max + 1)
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the answer is not valid HTTP: {type(error).__name__}") from None
    if response.status != http.client.OK:
        raise OSError(f"the answer has status {response.status}, not 200")
    if len(document) > bytes_max:
        raise OSError(f"the document is larger than {bytes_max} bytes")
    if response.length:
        raise OSError(f"the answer ends {response.length} bytes too early")
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
            limit=_CHUNK_BYTES,
        )
    except BaseException:
        connected.close()
        raise
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        lines = (f"GET {path} HTTP/1.0", f"Host: {url.netloc}", "Accept: application/json", "Connection: close", "", "")
        writer.write("\r\n".join(lines).encode())
        answer = bytearray()
        while len(answer) <= bytes_max and (chunk := await reader.read(_CHUNK_BYTES)):
            answer += chunk
        if len(answer) > bytes_max:
            raise OSError(f"the answer is larger than {bytes_max} bytes")
        return bytes(answer)
    finally:
        writer.transport.abort()  # discard further data


class _BufferedSocket:
    """A replacement for the socket that `http.client` reads from, with an answer that was received before."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._answer)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
