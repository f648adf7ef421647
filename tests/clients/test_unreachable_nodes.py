"""Clients without a node: `unreachable_timeout_s` bounds each call, and the error names what was tried."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from tidelog import Client
from tidelog.errors import NodeUnreachableError
from tidelog.testing.free_ports import free_ports

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "list topics": lambda client: client.topics(),
    "create a topic": lambda client: client.create_topic("t", exist_ok=True),
    "publish": lambda client: client.producer("t").send(b"v"),
    "read": lambda client: anext(client.consumer("t")),
    "join a group": lambda client: client.consumer("t", group="g").poll(timeout_s=20),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_fails_soon_and_names_each_address_that_was_tried(call: str) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    client = Client(addresses, unreachable_timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(NodeUnreachableError) as failed:
        await CALLS[call](client)
    assert time.monotonic() - began < 15, "the request timeout is 30 s"
    assert [address for address in addresses if f"cannot connect to {address}" not in str(failed.value)] == []
    await client.abort()


async def test_connecting_tries_each_address_once() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    async with Client(addresses) as client:
        with pytest.raises(NodeUnreachableError) as failed:
            await client.connect()
    assert str(failed.value).count("cannot connect to") == 2
