"""A gateway with authentication and a real node with access rules, in the process of the test, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from fastapi import FastAPI
from tests.broker.keyed import ADMIN, client
from tests.broker.stand import Stand
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog import Client
from tidelog.security import AccessRule, KeyInfo
from tidelog_broker.node.node import Node
from tidelog_gateway.app import create_app
from tidelog_gateway.server.gateway_server import make_server
from tidelog_gateway.server.listeners import listen
from tidelog_gateway.settings import GatewaySettings

WRONG = "tlk_bcdefghijk234567_" + "w" * 43


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass(slots=True)
class Secured:
    """The gateway's port and application, the administrator's client, and an HTTP client."""

    node: Node
    admin: Client
    app: FastAPI
    port: int
    http: httpx.AsyncClient
    stand: Stand
    keys: dict[str, KeyInfo] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def ws(self, key: str | None = None, **options: Any) -> connect:
        headers = {} if key is None else bearer(key)
        address = f"ws://127.0.0.1:{self.port}/v1/ws"
        protocols = [Subprotocol("tidelog.v1.json")]
        return connect(address, subprotocols=protocols, additional_headers=headers, **options)

    async def request(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> httpx.Response:
        """Return an answer; of an endless stream only the head."""
        async with self.http.stream(method, path, json=body, headers=headers) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                await answer.aread()
        return answer

    async def key_of(self, principal: str, *rules: tuple[tuple[str, ...], str, str], **options: Any) -> str:
        """Create a key and rules for its principal: operations, kind of resource, and name."""
        made = await self.admin.security.create_key(principal, **options)
        for operations, resource, name in rules:
            await self.admin.security.grant(AccessRule(principal, operations, resource, name))
        self.keys[principal] = made.info
        return made.api_key

    async def revoke(self, principal: str) -> None:
        await self.admin.security.revoke_key(self.keys[principal].key_id)


@asynccontextmanager
async def secured(
    path: Path, *, node_settings: Mapping[str, Any] = MappingProxyType({}), **settings: Any
) -> AsyncIterator[Secured]:
    """Run both; `settings` are the gateway's."""
    key_file = path / "admin.key"
    key_file.touch(mode=0o600)
    key_file.write_text(ADMIN)
    stand = Stand(path / "data")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stand.close)
        node = await stand.start(auth="required", admin_key_file=key_file, **node_settings)
        admin = await stack.enter_async_context(client(node.port, ADMIN))
        own = (await admin.security.create_key("gate")).api_key
        await admin.security.grant(AccessRule("gate", ("impersonate",), "cluster"))

        @asynccontextmanager
        async def opener(checked: GatewaySettings) -> AsyncIterator[Client]:
            async with Client(checked.bootstrap, api_key=own, request_timeout_s=10, quorum_timeout_s=3) as opened:
                yield opened

        told: dict[str, Any] = {"auth": "callers", "bootstrap": [f"127.0.0.1:{node.port}"], "http_port": 0} | settings
        checked = GatewaySettings(**told)
        app = create_app(checked, opener=opener)
        listener = listen(checked)
        server = make_server(checked, app, listener)
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await serving

        stack.push_async_callback(stop)
        port = listener.getsockname()[1]
        # httpx keeps idle connections as long as the gateway does; a request sent when it closes one would be lost.
        kept = httpx.Limits(keepalive_expiry=1.0)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=kept)
        )
        yield Secured(node, admin, app, port, http, stand)
