from __future__ import annotations

import json
from typing import Any

import httpx
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


async def test_refused_handshakes_have_the_reason(serve: Serve) -> None:
    async with serve() as served:
        document = await refused(served.ws, subprotocols=OURS, origin=Origin("http://evil.example"))
        assert (document["status"], document["code"]) == (403, "forbidden")
        assert "http://evil.example" in document["detail"]
        assert "allowed_origins" in document["detail"]
        document = await refused(served.ws)
        assert (document["status"], document["code"]) == (400, "unsupported_subprotocol")
        document = await refused(served.ws, subprotocols=[Subprotocol("other"), Subprotocol("tidelog.v2.json")])
        assert document["status"] == 400
        assert "'other, tidelog.v2.json'" in document["detail"]
        assert "offer tidelog.v1.json" in document["detail"]
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


async def test_requests_without_an_upgrade_are_refused(serve: Serve) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as api:
        answer = await api.get("/v1/ws")
        assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
        assert (answer.headers["Upgrade"], answer.headers["Connection"]) == ("websocket", "Upgrade")
        assert (await api.get("/livez")).status_code == 200
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = await api.request(method, "/v1/ws", json={})
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
            assert answer.headers["Allow"] == "GET, HEAD"


async def test_messages_are_not_compressed_whatever_is_offered(serve: Serve) -> None:
    async with serve() as served, connect(served.ws, subprotocols=OURS, compression="deflate") as socket:
        assert socket.request is not None
        assert socket.response is not None
        assert "permessage-deflate" in socket.request.headers["Sec-WebSocket-Extensions"]
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
