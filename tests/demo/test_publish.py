from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tidelog import Client
from tidelog_cli.up.child_processes import running
from tidelog_demo.publish import RECORDS_PER_REQUEST, TOPIC, PublishError, publish_natively, publish_over_rest
from tidelog_demo.source import Rows


def _rows(first: int, count: int) -> Rows:
    numbers = range(first, first + count)
    return Rows([b"key-%d" % (at % 7) for at in numbers], [orjson.dumps({"number": at}) for at in numbers])


@asynccontextmanager
async def _http(status: bytes, bodies: list[bytes]) -> AsyncIterator[str]:
    """A server that responds to every request with `status` and stores the bodies."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            (length,) = (line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            bodies.append(await reader.readexactly(int(length.split(b":")[1])))
            writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\n{}")

    def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(answer(reader, writer)))
        writers.append(writer)

    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def test_rest_requests_contain_the_rows_as_json_objects() -> None:
    bodies: list[bytes] = []
    stored: list[int] = []
    async with _http(b"200 OK", bodies) as url:
        await publish_over_rest(url, _rows(0, RECORDS_PER_REQUEST + 3), stored.append)
    assert stored == [RECORDS_PER_REQUEST, 3]
    first = orjson.loads(bodies[0])["records"]
    assert first[8] == {"key": "key-1", "value": {"number": 8}, "value_encoding": "json"}
    assert len(orjson.loads(bodies[1])["records"]) == 3


async def test_any_other_status_is_an_error() -> None:
    async with _http(b"207 Multi-Status", []) as url:
        with pytest.raises(PublishError, match="207"):
            await publish_over_rest(url, _rows(0, 1), lambda _: None)


@pytest.mark.e2e
async def test_native_publishing_stores_every_row_by_its_key(tmp_path: Path) -> None:
    command = ("node", "--data", str(tmp_path / "node"), "--port", "0", "--management-port", "0")
    stored: list[int] = []
    async with running("node", command) as node, Client(f"127.0.0.1:{node.ready['port']}") as client:
        await client.create_topic(TOPIC, partitions=4)
        await publish_natively(client, [_rows(0, 100), _rows(100, 50)], stored.append)
        found: dict[bytes, list[int]] = {}
        ends = await client.list_offsets(TOPIC, "latest")
        for partition, end in ends.items():
            at = 0
            while at < end.offset:
                fetched = await client.fetch(TOPIC, partition, at)
                for record in (record for batch in fetched.batches for record in batch):
                    assert record.key is not None
                    assert record.value is not None
                    found.setdefault(record.key, []).append(orjson.loads(record.value)["number"])
                at = fetched.next_offset
    assert stored == [100, 50]
    assert found == {b"key-%d" % key: list(range(key, 150, 7)) for key in range(7)}, "all, in order by key"
