"""Authentication of every route and every message of a WebSocket."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.broker.stand import settled
from tests.gateway.access_rows import ALL, MESSAGES, ROWS, Row, routes
from tests.gateway.secured import WRONG, Secured, bearer, secured
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tidelog.security import AccessRule
from tidelog_gateway.auth.authentication import OPEN_PATHS
from tidelog_gateway.protocol.messages import REQUESTS


def test_every_route_is_open_or_has_a_row() -> None:
    opened = {("GET", path) for path in (*OPEN_PATHS, "/docs/assets/{name}", "/ui/", "/ui/{name}")}
    assert routes() == opened | ROWS.keys()


async def sent(gate: Secured, method: str, row: Row, headers: dict[str, str]) -> Any:
    return await gate.request(method, row.path.format(**gate.ids), headers, row.body)


async def all_sent(gate: Secured, headers: dict[str, str]) -> list[Any]:
    return await asyncio.gather(*(sent(gate, method, row, headers) for (method, _), row in ROWS.items()))


async def test_each_route_authenticates_and_authorizes(tmp_path: Path) -> None:
    async with secured(tmp_path, wrong_credentials_max=0) as gate:
        await gate.admin.create_topic("t")
        await gate.admin.producer("t").send(b"x", key=b"k")
        await gate.admin.commit("gone", "t", {0: 0})
        ann, eve = await gate.key_of("ann", *ALL), await gate.key_of("eve")
        doomed = await gate.admin.security.grant(AccessRule("eve", ("produce",), "topic", "none"))
        await gate.key_of("doomed")
        gate.ids = {"key": gate.keys["doomed"].key_id, "rule": doomed.rule_id}
        for shown in ({}, bearer(WRONG), bearer("x"), {"Authorization": f"Basic {ann}"}, bearer("a b")):
            for (method, path), answer in zip(ROWS, await all_sent(gate, shown), strict=True):
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), (method, path, shown)
                assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="tidelog"')
        for ((method, path), row), answer in zip(ROWS.items(), await all_sent(gate, bearer(eve)), strict=True):
            assert answer.status_code == row.without, (method, path, answer.text)
            if row.without == 403:
                assert "'eve' has no permission" in answer.json()["detail"]
            else:
                assert not answer.json().get("topics") and not answer.json().get("groups")  # noqa: PT018
        for (method, path), row in ROWS.items():
            answer = await sent(gate, method, row, bearer(ann))
            assert answer.status_code in ({200, 201, 204} if row.granted is None else {row.granted}), (
                path,
                answer.text,
            )
        await gate.revoke("ann")
        for (method, path), answer in zip(ROWS, await all_sent(gate, bearer(ann)), strict=True):
            assert answer.status_code == 401, (method, path, answer.text)
        for path in (*OPEN_PATHS, "/docs/assets/favicon.png", "/ui/", "/ui/app.js"):
            assert (await gate.http.get(path)).status_code in {200, 307}, path
        for path in ("/none", "/v1/none", "/livez/", "/livez//", "/docs/", "/docs/../v1/topics"):
            assert (await gate.http.get(path)).status_code == 401, (
                "an unauthenticated client does not learn which paths exist"
            )


async def receive(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


async def test_each_message_of_a_websocket_waits_for_authentication(tmp_path: Path) -> None:
    assert MESSAGES.keys() == set(REQUESTS), "a new kind of message needs a request here"
    async with secured(tmp_path, wrong_credentials_max=0) as gate:
        await gate.admin.create_topic("t")
        garbage: list[str | bytes] = ["garbage", b"\0", '{"id":1,"auth":{"token":"a b"}}']
        for message in [*map(json.dumps, MESSAGES.values()), *garbage]:
            async with gate.ws() as socket:
                await socket.send(message)
                assert (await receive(socket))["error"]["status"] == 401
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 4401
        eve = await gate.key_of("eve")
        async with gate.ws() as socket:
            await socket.send(json.dumps({"id": 7, "auth": {"token": eve}}))
            assert await receive(socket) == {"id": 7, "ok": {"principal": "eve"}}
            for kind in ("sub", "pub"):
                await socket.send(json.dumps(MESSAGES[kind]))
                answer = await receive(socket)
                assert answer["error"]["status"] == 403, answer
            await socket.send(json.dumps(MESSAGES["auth"]))
            assert (await receive(socket))["error"]["code"] == "authenticated"
        with pytest.raises(InvalidStatus) as refused:
            async with gate.ws(WRONG):
                raise AssertionError("the handshake succeeded")
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_silent_websocket_is_closed_in_time(tmp_path: Path) -> None:
    async with secured(tmp_path, head_timeout_s=0.2) as gate, gate.ws() as socket:
        assert "the first message must have credentials" in (await receive(socket))["error"]["detail"]
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4401


async def test_silent_websockets_do_not_block_others(tmp_path: Path) -> None:
    async with secured(tmp_path, ws_connections_max=12) as gate, gate.ws() as slow, AsyncExitStack() as strangers:
        ann = await gate.key_of("ann", *ALL)
        silent = [await strangers.enter_async_context(gate.ws(local_addr=("127.0.0.2", 0))) for _ in range(2)]
        for _ in range(3):
            silent.append(await strangers.enter_async_context(gate.ws(local_addr=("127.0.0.2", 0))))
            with pytest.raises(ConnectionClosed):
                await silent.pop(0).recv()
        assert {socket.close_code for socket in silent} == {None}
        async with gate.ws(ann) as third:
            await third.send(json.dumps(MESSAGES["auth"]))
            assert (await receive(third))["error"]["code"] == "authenticated"
        for socket in (slow, silent[0]):
            await socket.send(json.dumps({"id": 1, "auth": {"token": ann}}))
            assert (await receive(socket))["ok"] == {"principal": "ann"}


async def test_a_replaced_websocket_is_answered_with_the_reason(tmp_path: Path) -> None:
    async with secured(tmp_path, ws_connections_max=4) as gate, gate.ws() as first, gate.ws() as second:
        with pytest.raises(ConnectionClosed):
            await first.recv()
        assert first.close_code == 4429
        ann = await gate.key_of("ann", *ALL)
        await second.send(json.dumps({"id": 1, "auth": {"token": ann}}))
        assert (await receive(second))["ok"] == {"principal": "ann"}
        async with gate.ws() as third:
            await third.send(json.dumps({"id": 2, "auth": {"token": ann}}))
            assert (await receive(third))["ok"] == {"principal": "ann"}, (
                "an authenticated WebSocket has left the unauthenticated slots"
            )


async def test_a_caller_leaves_half_of_the_websockets_to_others(tmp_path: Path) -> None:
    async with secured(tmp_path, ws_connections_max=6) as gate, AsyncExitStack() as open_ones:
        ann, ben = await gate.key_of("ann", *ALL), await gate.key_of("ben", *ALL)
        again = (await gate.admin.security.create_key("ann")).api_key
        for key, most in ((ann, 3), (again, 0), (ben, 2)):
            for _ in range(most):
                socket = await open_ones.enter_async_context(gate.ws(key))
                await socket.send(json.dumps(MESSAGES["auth"]))
                assert (await receive(socket))["error"]["code"] == "authenticated"
            async with gate.ws(key) as more:
                with pytest.raises(ConnectionClosed):
                    await more.recv()
                assert more.close_code == 4429
                assert "reserved for other callers" in (more.close_reason or "")
        await open_ones.aclose()
        own = gate.app.state.gateway
        await settled(lambda: not own.open_websockets, "closed WebSockets are still counted")
        assert not own.websockets_of


async def test_unauthenticated_requests_are_refused_before_the_body_is_read(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
        head = b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head + b"x" * 100_000)
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401"), "and not 100"
        writer.close()


async def test_a_gateway_without_impersonate_is_not_ready(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        (rule,) = [each for each in await gate.admin.security.rules() if "impersonate" in each.operations]
        await gate.admin.security.revoke(rule.rule_id)
        answer = await gate.http.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


async def test_credentials_in_a_url_are_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        ann = await gate.key_of("ann", *ALL)
        for query in (f"token={ann}", "Access_Token=x", f"key={ann}", f"x={WRONG}"):
            answer = await gate.http.get(f"/v1/topics?{query}", headers=bearer(ann))
            assert (answer.status_code, answer.json()["code"]) == (400, "credentials_in_url")
            assert ann not in answer.text
        address = f"ws://127.0.0.1:{gate.port}/v1/ws?token={ann}"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, subprotocols=[Subprotocol("tidelog.v1.json")]):
                raise AssertionError("the handshake succeeded")
        assert refused.value.response.status_code == 400
