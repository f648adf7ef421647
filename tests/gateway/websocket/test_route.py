from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.conftest import Serve
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

OURS = [Subprotocol("tidelog.v1.json")]


async def refused(address: str, **options: Any) -> dict[str, Any]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(address, **options):
            raise AssertionError("the handshake went through")
    response = caught.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = json.loads(response.body)
    assert document["status"] == response.status_code
    assert document["request_id"]
    return document


async def test_handshakes_that_are_refused_say_why(serve: Serve) -> None:
    async with serve() as served:
        document = await refused(served.ws, subprotocols=OURS, origin=Origin("http://evil.example"))
        assert (document["status"], document["code"]) == (403, "forbidden")
        document = await refused(served.ws)
        assert (document["status"], document["code"]) == (422, "invalid_request")
        document = await refused(served.ws, subprotocols=[Subprotocol("other")])
        assert document["status"] == 422
        document = await refused(served.ws + "/elsewhere", subprotocols=OURS)
        assert (document["status"], document["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("query", "detail"),
    [("topic=t", "is unknown"), ("sid=1&sid=2", "is unknown"), ("", None)],
)
async def test_a_handshake_with_query_parameters_is_refused(serve: Serve, query: str, detail: str | None) -> None:
    async with serve() as served:
        if detail is None:
            async with connect(f"{served.ws}?{query}", subprotocols=OURS) as socket:
                assert socket.subprotocol == OURS[0]
            return
        document = await refused(f"{served.ws}?{query}", subprotocols=OURS)
        assert (document["status"], document["code"]) == (422, "invalid_request")
        (error,) = document["errors"]
        assert error["parameter"] == query.partition("=")[0]
        assert detail in error["detail"]
        assert "takes no query parameters" in error["detail"]


async def test_pages_that_are_allowed(serve: Serve) -> None:
    async with serve(allowed_origins=["https://app.example"]) as served:
        for origin in ("https://app.example", served.http):
            async with connect(served.ws, subprotocols=OURS, origin=Origin(origin)) as socket:
                assert socket.subprotocol == OURS[0]
