"""Security changes apply at all of three nodes within a second."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import founded_with_keys
from tests.broker.peer import Peer

from tidelog import Client
from tidelog.credentials import ApiKeyFile, Credentials, Password
from tidelog.errors import EpochChangingError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_proto import broker_pb2 as pb

LIMIT_S = 1.0
ROUNDS = 3
"""The middle one counts: a machine that is busy with other things may be late once."""
WAIT_S = 20.0
PASSWORD = "correct horse battery"


class Everywhere:
    """Three nodes, an administrator at the first, and what the others say."""

    def __init__(self, founded: Founded, admin: Client) -> None:
        self.founded = founded
        self.admin = admin

    async def latest_s(self, is_so: Callable[[str], Awaitable[bool]]) -> float:
        """Return in how many seconds something is so at each node."""
        begun_s = time.monotonic()

        async def at(node: str) -> None:
            while not await is_so(node):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*map(at, self.founded.nodes))
        return time.monotonic() - begun_s

    async def lets_in(self, node: str, credentials: Credentials) -> bool:
        """Whether a node authenticates a new connection of a principal."""
        address = f"127.0.0.1:{self.founded.ports[node]}"
        while True:
            try:
                async with Client(address, request_timeout_s=WAIT_S, credentials=credentials) as asking:
                    await asking.connect()
            except UnauthenticatedError:
                return False
            except EpochChangingError:  # it was changed while it was being looked at
                continue
            return True


@pytest.fixture
async def everywhere(founded: Founded, key_file: Path) -> AsyncIterator[Everywhere]:
    async with founded_with_keys(founded, key_file) as admin:
        await admin.create_topic("t")
        yield Everywhere(founded, admin)


async def test_changed_rules_apply_at_once(everywhere: Everywhere) -> None:
    key = await everywhere.admin.security.create_key("ann")
    peers = {node: await Peer.connect(everywhere.founded.ports[node]) for node in everywhere.founded.nodes}

    async def may(node: str) -> bool:
        """Whether the node itself allows a request of a kind that is not forwarded."""
        answer = (await peers[node].ask(topic_describe=pb.TopicDescribe(name="t"))).envelope
        assert answer.error.code in {0, pb.FORBIDDEN}
        return not answer.HasField("error")

    async def may_not(node: str) -> bool:
        return not await may(node)

    took: dict[str, list[float]] = {"granted": [], "revoked": [], "denied": [], "let again": []}
    try:
        for peer in peers.values():
            await peer.greet(api_key=key.api_key)
        for _ in range(ROUNDS):
            rule = await everywhere.admin.security.grant(AccessRule("ann", ("describe",), "topic", "t"))
            took["granted"].append(await everywhere.latest_s(may))
            denied = await everywhere.admin.security.grant(AccessRule("ann", ("describe",), "topic", "t", deny=True))
            took["denied"].append(await everywhere.latest_s(may_not))
            await everywhere.admin.security.revoke(denied.rule_id)
            took["let again"].append(await everywhere.latest_s(may))
            await everywhere.admin.security.revoke(rule.rule_id)
            took["revoked"].append(await everywhere.latest_s(may_not))
    finally:
        for each in peers.values():
            await each.close()
    assert all(statistics.median(times) < LIMIT_S for times in took.values()), took


async def test_revoked_keys_end_open_sessions_at_once(everywhere: Everywhere, tmp_path: Path) -> None:
    took: dict[str, list[float]] = {"made": [], "open ends": [], "revoked": []}
    path = tmp_path / "key"
    path.touch(mode=0o600)

    async def let_in(node: str) -> bool:
        return await everywhere.lets_in(node, ApiKeyFile(path))

    async def shut_out(node: str) -> bool:
        return not await let_in(node)

    for _ in range(ROUNDS):
        key = await everywhere.admin.security.create_key("ann")
        path.write_text(key.api_key)
        took["made"].append(await everywhere.latest_s(let_in))
        peers = {node: await Peer.connect(everywhere.founded.ports[node]) for node in everywhere.founded.nodes}
        for peer in peers.values():
            await peer.greet(api_key=key.api_key)
        await everywhere.admin.security.revoke_key(key.info.key_id)
        begun_s = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            for peer in peers.values():
                await peer.event()  # that it was revoked
                await peer.closed()
        took["open ends"].append(time.monotonic() - begun_s)
        for peer in peers.values():
            await peer.close()
        took["revoked"].append(await everywhere.latest_s(shut_out))
    assert all(statistics.median(times) < LIMIT_S for times in took.values()), took


async def test_changed_users_apply_at_once(everywhere: Everywhere, tmp_path: Path) -> None:
    took: dict[str, list[float]] = {"made": [], "deleted": []}
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text(PASSWORD)

    async def let_in(node: str) -> bool:
        return await everywhere.lets_in(node, Password("ben", path))

    async def shut_out(node: str) -> bool:
        return not await let_in(node)

    for _ in range(ROUNDS):
        await everywhere.admin.security.create_user("ben", PASSWORD)
        took["made"].append(await everywhere.latest_s(let_in))
        await everywhere.admin.security.delete_user("ben")
        took["deleted"].append(await everywhere.latest_s(shut_out))
    assert all(statistics.median(times) < LIMIT_S for times in took.values()), took
