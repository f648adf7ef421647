"""Each route and each message of a WebSocket with exactly the permissions that it needs, and with all but one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.access_rows import ALL, MESSAGE_NEEDS, MESSAGES, ROWS, Right
from tests.gateway.secured import WRONG, Secured, bearer, secured
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tidelog.security import AccessRule
from tidelog_gateway.protocol.messages import REQUESTS


class Holders:
    """Creates principals by their permissions, and caches them."""

    def __init__(self, gate: Secured) -> None:
        self._gate = gate
        self._keys: dict[tuple[str, tuple[Right, ...]], str] = {}
        self._numbers = itertools.count()

    async def only(self, rights: tuple[Right, ...]) -> str:
        """Return the key of a principal with exactly these permissions."""
        if ("only", rights) not in self._keys:
            rules = [((operation,), resource, name) for operation, resource, name in rights]
            key = await self._gate.key_of(f"only-{next(self._numbers)}", *rules)
            self._keys["only", rights] = key
        return self._keys["only", rights]

    async def lacking(self, right: Right) -> str:
        """Return the key of a principal with all permissions except this one."""
        if ("not", (right,)) not in self._keys:
            principal = f"not-{next(self._numbers)}"
            self._keys["not", (right,)] = await self._gate.key_of(principal, *ALL)
            operation, resource, name = right
            await self._gate.admin.security.grant(AccessRule(principal, (operation,), resource, name, deny=True))
        return self._keys["not", (right,)]


async def test_each_route_needs_exactly_the_permissions_of_its_row(tmp_path: Path) -> None:
    async with secured(tmp_path, wrong_credentials_max=0) as gate:
        await prepared(gate)
        doomed = await gate.admin.security.grant(AccessRule("doomed", ("produce",), "topic", "none"))
        await gate.key_of("doomed")
        gate.ids = {"key": gate.keys["doomed"].key_id, "rule": doomed.rule_id}
        holders = Holders(gate)
        for (method, path), row in ROWS.items():
            for right in row.needs:
                answer = await sent(gate, method, path, await holders.lacking(right))
                assert answer.status_code == 403, (method, path, right, answer.text)
            answer = await sent(gate, method, path, await holders.only(row.needs))
            assert answer.status_code in ({200, 201, 204} if row.granted is None else {row.granted}), (
                path,
                answer.text,
            )


async def prepared(gate: Secured) -> None:
    await gate.admin.create_topic("t")
    await gate.admin.producer("t").send(b"x", key=b"k")
    for group in ("g", "gone"):
        await gate.admin.commit(group, "t", {0: 0})


async def sent(gate: Secured, method: str, path: str, key: str) -> Any:
    row = ROWS[method, path]
    return await gate.request(method, row.path.format(**gate.ids), bearer(key), row.body)


async def asked(socket: ClientConnection, message: Any) -> Any:
    """Send a message; return its answer, ignoring unsolicited messages."""
    await socket.send(json.dumps(message))
    async with asyncio.timeout(20):
        while "id" not in (answer := json.loads(await socket.recv())):
            pass
    return answer


async def test_each_message_of_a_websocket_needs_exactly_the_permissions_of_its_row(tmp_path: Path) -> None:
    assert MESSAGE_NEEDS.keys() == MESSAGES.keys() == set(REQUESTS), "a new kind of message needs a row"
    async with secured(tmp_path, wrong_credentials_max=0) as gate:
        await prepared(gate)
        holders = Holders(gate)
        for kind, message in MESSAGES.items():
            needs = MESSAGE_NEEDS[kind]
            is_own = kind in {"credit", "commit", "unsub"}
            reading = (*MESSAGE_NEEDS["sub"], *needs) if is_own else needs  # they are about a subscription
            async with gate.ws(await holders.only(tuple(dict.fromkeys(reading)))) as socket:
                if is_own:
                    assert "ok" in await asked(socket, MESSAGES["sub"]), kind
                await taken(socket, kind, message)
            for right in needs:
                async with gate.ws(await holders.lacking(right)) as socket:
                    if is_own:
                        assert "ok" in await asked(socket, MESSAGES["sub"]), kind
                    answer = await asked(socket, message)
                    if kind == "sub" and "ok" in answer:  # the partitions may not be read
                        answer = json.loads(await socket.recv())["end"]
                    assert answer.get("error", {}).get("status") == 403, (kind, right, answer)
        await revoked(gate, await gate.key_of("ann", *ALL))


async def taken(socket: ClientConnection, kind: str, message: Any) -> None:
    """Send a message with permission, and check that it succeeds."""
    if kind == "credit":  # it has no answer; the next message's answer implies its own
        await socket.send(json.dumps(message))
        assert "ok" in await asked(socket, MESSAGES["unsub"])
    elif kind == "auth":
        assert (await asked(socket, message))["error"]["code"] == "authenticated"
    else:
        answer = await asked(socket, message)
        assert "ok" in answer, (kind, answer)


async def revoked(gate: Secured, key: str) -> None:
    """Check that messages with a wrong or revoked key close the WebSocket and have no effect."""
    standing = {}
    for kind in MESSAGES:
        standing[kind] = await gate.ws(key)
    await gate.revoke("ann")
    for kind, socket in standing.items():
        answers = await all_of(socket)
        assert all(answer["error"]["status"] == 401 for answer in answers), (kind, answers)
        assert socket.close_code == 4401, kind
        with pytest.raises(ConnectionClosed):
            await socket.send(json.dumps(MESSAGES[kind]))
    before = (await gate.admin.list_offsets("t", "latest"))[0].offset
    await asyncio.gather(*(shut_out(gate, kind, shown) for kind in MESSAGES for shown in (key, WRONG)))
    assert (await gate.admin.list_offsets("t", "latest"))[0].offset == before, "the messages had no effect"


async def shut_out(gate: Secured, kind: str, shown: str) -> None:
    """Authenticate wrongly, in the handshake and by the first message, with another message right after it."""
    with pytest.raises(InvalidStatus) as refused:
        async with gate.ws(shown):
            raise AssertionError("the handshake succeeded")
    assert refused.value.response.status_code == 401
    async with gate.ws() as socket:
        await socket.send(json.dumps({"id": 5, "auth": {"token": shown}}))
        await socket.send(json.dumps(MESSAGES[kind]))
        answers = await all_of(socket)
        assert [(answer["id"], answer["error"]["status"]) for answer in answers] == [(5, 401)], (kind, answers)
        assert socket.close_code == 4401


async def all_of(socket: ClientConnection) -> list[Any]:
    """Return all messages until the gateway closes."""
    came: list[Any] = []
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(20):
            while True:
                came.append(json.loads(await socket.recv()))
    return came
