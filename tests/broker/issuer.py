"""Issuer of tokens for tests: keys, and a server for them that can be made faulty."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "tidelog"


class Issuer:
    """Keys by id, and the tokens that they sign."""

    def __init__(self, *key_ids: str) -> None:
        self.keys: dict[str, Ed25519PrivateKey] = {}
        for key_id in key_ids or ("one",):
            self.add(key_id)

    def add(self, key_id: str) -> None:
        self.keys[key_id] = Ed25519PrivateKey.generate()

    def token(self, sub: object = "ann", *, key_id: str = "one", lasts_s: float = 6000, **claims: Any) -> str:
        said = {"sub": sub, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time() + lasts_s)} | claims
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, self.keys[key_id], "EdDSA", headers={"kid": key_id})

    @property
    def document(self) -> bytes:
        keys = [
            OKPAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": key_id, "use": "sig"}
            for key_id, key in self.keys.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def save(self, path: Path) -> Path:
        path.write_bytes(self.document)
        return path

    def settings(self, source: object) -> dict[str, object]:
        """Return the settings of a node that believes this issuer."""
        return {"jwt_jwks": str(source), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_leeway_s": 0}


def as_answer(document: bytes, status: str = "200 OK") -> bytes:
    """Return the response of an HTTP server."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(document)}\r\n\r\n".encode() + document


class Publisher:
    """A server that gives every caller the same answer; None: it does not answer and keeps the connection."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jwks"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    def answer_last(self, answer: bytes) -> None:
        """Answer the caller of the last request, which got no answer yet."""
        self._writers[-1].write(answer)
        self._writers[-1].close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
                writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has given up
