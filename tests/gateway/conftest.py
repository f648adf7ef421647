from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.gateway.fake_log import FakeLog, opener

from tidelog_gateway.app import create_app
from tidelog_gateway.settings import GatewaySettings

OpenApi = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def open_api(log: FakeLog) -> OpenApi:
    """Open an application on the log in memory, with settings of the test's choice, and a client for it."""

    @asynccontextmanager
    async def open_with(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(GatewaySettings(**settings), opener=opener(log))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            yield client

    return open_with


@pytest.fixture
async def api(open_api: OpenApi) -> AsyncIterator[httpx.AsyncClient]:
    async with open_api() as client:
        yield client
