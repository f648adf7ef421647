"""A gateway process that is killed while it answers requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import httpx
import pytest
from tests.gateway.conftest import process

pytestmark = pytest.mark.e2e


async def test_requests_of_a_killed_gateway_end_and_are_stored_completely_or_not_at_all(
    tmp_path: Path, node_address: str
) -> None:
    """Answered records are stored once, half a body is not, and a new gateway at the same port continues."""
    topic = "killed-gateway"
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (gateway, ready):
        port = ready["http_port"]
        path = f"/v1/topics/{topic}"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.post("/v1/topics", json={"name": topic})).status_code == 201
            answered = await http.post(f"{path}/records", json={"records": [{"value": "answered"}]})
            assert answered.json() == {"results": [{"partition": 0, "offset": 0}]}
        host = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        poll = f"GET {path}/partitions/0/records?offset=1&wait_ms=20000".encode() + host + b"\r\n"
        stream = f"GET {path}/stream?from=earliest".encode() + host + b"\r\n"
        half = json.dumps({"records": [{"value": "half"}]}).encode()
        publish = f"POST {path}/records".encode() + host + b"Content-Type: application/json\r\n"
        publish += b"Content-Length: %d\r\n\r\n" % len(half) + half[:-3]
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for (_, writer), data in zip(pairs, (poll, stream, publish), strict=True):
            writer.write(data)
        async with asyncio.timeout(20):
            await pairs[1][0].readuntil(b"answered")
            gateway.kill()
            gateway.wait()
            for reader, writer in pairs:
                with contextlib.suppress(ConnectionResetError):
                    assert b"half" not in await reader.read()
                writer.close()
    with process("gateway", "--bootstrap", node_address, "--http-port", str(port)):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            found = (await http.get(f"{path}/partitions/0/records?offset=0")).json()
            assert [record["value"] for record in found["records"]] == ["answered"]
            again = await http.post(f"{path}/records", json={"records": [{"value": "again"}]})
            assert again.json() == {"results": [{"partition": 0, "offset": 1}]}
