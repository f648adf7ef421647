"""Publishing the flights: the first few thousand over REST, the rest natively in bulk.

Both store the same records: the carrier's code as key, the flight as a JSON object. The client keeps records of one key
in order in one partition; so does the gateway, which uses the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

import httpx
import orjson

from tidelog import Client
from tidelog_demo.source import Rows

TOPIC: Final = "flights"
PARTITIONS: Final = 4
REST_RECORDS: Final = 3_000
RECORDS_PER_REQUEST: Final = 250
"""Records per request; a web application might send as many at a time."""

Advance = Callable[[int], None]


class PublishError(Exception):
    """The gateway rejected records; the message includes its response."""


async def publish_over_rest(http_url: str, rows: Rows, advance: Advance) -> None:
    """POST the rows in requests of `RECORDS_PER_REQUEST`, calling `advance` with the number of records of each.

    Raises:
        PublishError: the gateway answered with a status other than 200.
        httpx.HTTPError: the gateway cannot be reached.
    """
    records: list[dict[str, Any]] = [
        {"key": key.decode(), "value": orjson.Fragment(value), "value_encoding": "json"}
        for key, value in zip(rows.keys, rows.values, strict=True)
    ]
    async with httpx.AsyncClient(base_url=http_url, timeout=30.0, trust_env=False) as http:
        for at in range(0, len(records), RECORDS_PER_REQUEST):
            part = records[at : at + RECORDS_PER_REQUEST]
            answer = await http.post(
                f"/v1/topics/{TOPIC}/records",
                content=orjson.dumps({"records": part}),
                headers={"content-type": "application/json"},
            )
            if answer.status_code != HTTPStatus.OK:
                raise PublishError(f"POST {answer.url} returned {answer.status_code}: {answer.text[:500]}")
            advance(len(part))


async def publish_natively(client: Client, parts: Iterable[Rows], advance: Advance) -> None:
    """Publish the rows in parts; the next part is prepared while one is pending.

    Raises:
        TidelogError: the node rejected a request.
    """
    async with client.producer(TOPIC) as producer:

        async def send(rows: Rows) -> None:
            receipts = await producer.send_many(rows.values, keys=rows.keys)
            advance(len(receipts))

        under_way: asyncio.Task[None] | None = None
        try:
            for rows in parts:
                if under_way is not None:
                    await under_way
                under_way = asyncio.create_task(send(rows))
                await asyncio.sleep(0)  # lets the send start before the next part is prepared
            if under_way is not None:
                await under_way
        finally:
            if under_way is not None:
                under_way.cancel()
