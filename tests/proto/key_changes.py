"""A TLS 1.3 client that sends key updates at will, which Python's `ssl` does not offer.

Its handshake is OpenSSL's, which logs the initial traffic secret; the following records are made here
(RFC 8446: 5.2 records, 7.1 labels, 7.2 and 7.3 keys, 4.6.3 their change).
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_CIPHER: Final = "TLS_AES_256_GCM_SHA384"
_HASH: Final = SHA384()
_HANDSHAKE: Final = 22
_DATA: Final = 23
_KEY_UPDATE: Final = 24


class KeyChanger:
    """See the module."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._use(secret)

    @classmethod
    async def connected(cls, port: int, context: ssl.SSLContext, keys: Path) -> Self:
        """Call 127.0.0.1.

        Args:
            port: of the server.
            context: whom to believe.
            keys: a file to be made, for the secrets of the connection.
        """
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(keys)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        is_open = False
        while not is_open:
            try:
                tls.do_handshake()
                is_open = True
            except ssl.SSLWantReadError:
                pass
            writer.write(outgoing.read())
            if not is_open:
                incoming.write(await reader.read(65_536))
        cipher = tls.cipher()
        assert cipher is not None
        assert cipher[0] == _CIPHER
        return cls(reader, writer, _first_secret(keys))

    def change_keys(self, times: int, *, both: bool) -> None:
        """Send so many changes of keys; with `both` the server is to change its own each time."""
        for _ in range(times):
            self._writer.write(self._record(_HANDSHAKE, bytes((_KEY_UPDATE, 0, 0, 1, both))))
            self._use(_labelled(self._secret, b"traffic upd", _HASH.digest_size))

    def send(self, data: bytes) -> None:
        """Send a record with data."""
        self._writer.write(self._record(_DATA, data))

    async def drain(self) -> None:
        """Wait until the socket takes more."""
        await self._writer.drain()

    def close(self) -> None:
        """Go."""
        self._writer.transport.abort()

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_labelled(secret, b"key", 32))
        self._nonce = int.from_bytes(_labelled(secret, b"iv", 12))
        self._number = 0

    def _record(self, kind: int, content: bytes) -> bytes:
        plain = content + bytes((kind,))
        head = bytes((_DATA, 3, 3)) + (len(plain) + 16).to_bytes(2)
        nonce = (self._nonce ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._key.encrypt(nonce, plain, head)


def _first_secret(keys: Path) -> bytes:
    lines = [line.split() for line in keys.read_text("ascii").splitlines()]
    return next(bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")


def _labelled(secret: bytes, label: bytes, size_bytes: int) -> bytes:
    label = b"tls13 " + label
    info = size_bytes.to_bytes(2) + bytes((len(label),)) + label + bytes((0,))
    return HKDFExpand(_HASH, size_bytes, info).derive(secret)
