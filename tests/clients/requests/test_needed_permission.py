from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.keyed import ADMIN, client
from tests.broker.stand import Stand

from tidelog import Client, Producer
from tidelog.errors import ForbiddenError
from tidelog.security import AccessRule


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Client, Client]]:
    """Run a node with a topic; yield clients of its administrator, and of a key without rules."""
    key_file = path / "admin.key"
    key_file.touch(mode=0o600)
    key_file.write_text(ADMIN)
    stand = Stand(path / "data")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stand.close)
        node = await stand.start(auth="required", admin_key_file=key_file)
        admin = await stack.enter_async_context(client(node.port, ADMIN))
        await admin.create_topic("temps")
        key = await admin.security.create_key("eve")
        yield admin, await stack.enter_async_context(client(node.port, key.api_key))


async def refused_by(asking: Awaitable[object]) -> str:
    with pytest.raises(ForbiddenError) as refused:
        await asking
    return str(refused.value)


async def consume(eve: Client, **options: Any) -> None:
    async with eve.consumer("temps", **options) as consumer:
        await anext(consumer)


async def test_refusals_name_the_requested_operation(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, eve):
        producer: Producer = eve.producer("temps")
        asked: dict[str, list[Awaitable[object]]] = {
            "consume": [
                eve.fetch("temps", 0, 0),
                eve.get("temps", b"k"),
                eve.get("temps", b"k", partition=0),
                consume(eve, start="earliest"),
                consume(eve, partitions=[0]),
                consume(eve, group="g"),
            ],
            "produce": [producer.send(b"x"), eve.producer("temps", name="one").send(b"x")],
            "delete": [eve.delete_records("temps", before=0), eve.delete_topic("temps")],
            "alter": [eve.compact_topic("temps"), eve.alter_topic("temps", retention_ms=1)],
            "describe": [eve.topic("temps"), eve.list_offsets("temps", "latest")],
        }
        for operation, calls in asked.items():
            for call in calls:
                said = await refused_by(call)
                assert said.endswith(f"tidelog acl grant eve {operation} topic:temps"), (operation, said)
        for call in (eve.commit("g", "temps", {0: 0}), eve.groups.reset("g", "earliest", topic="temps")):
            assert (await refused_by(call)).endswith("tidelog acl grant eve group group:g")


async def test_refused_lookup_remains_when_the_operation_is_allowed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (admin, eve):
        await admin.security.grant(AccessRule("eve", ("consume",), "topic", "temps"))
        await admin.security.grant(AccessRule("eve", ("describe",), "topic", "temps", deny=True))
        assert "describe on the topic" in await refused_by(eve.fetch("temps", 0, 0))
