"""Greetings where a node asks who its clients are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog.errors import CredentialsExpiredError, UnauthenticatedError
from tidelog_proto import broker_pb2 as pb


async def test_nobody_and_wrong_keys_are_turned_away(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    wrong = ADMIN[:-1] + "t"
    for key in ("", "secret", wrong, "tlk_" + "a" * 16 + "_" + "b" * 43):
        with pytest.raises(UnauthenticatedError) as refused:
            async with client(node.port, key) as one:
                await one.connect()
        assert not key or key not in str(refused.value)
    assert counted(node, "tidelog_unauthenticated_total") == 4
    async with client(node.port, ADMIN) as one:
        await one.create_topic("t")
        soon = 1_500_000 + time.time_ns() // 1000
        made = await one.security.create_key("ann", expires_us=soon)
        assert made.api_key not in repr(made)
    for _ in range(2):  # also once the right secret is known
        with pytest.raises(UnauthenticatedError):
            async with client(node.port, made.api_key[:-4] + "AAAA") as ann:
                await ann.connect()
        async with client(node.port, made.api_key) as ann:
            await ann.connect()
    async with client(node.port, made.api_key) as ann:
        await ann.connect()
        await settled(lambda: not node.server.connections, "the session did not end")
    with pytest.raises(CredentialsExpiredError):
        async with client(node.port, made.api_key) as ann:
            await ann.connect()


async def test_a_key_that_is_news_to_a_node_is_asked_about(founded: Founded, key_file: Path) -> None:
    """A node that was away while a key was made takes it at once; a starting one turns nobody away for good."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("t")
        await founded.stop("c")
        made = await admin.security.create_key("ann")
        node = await founded.start("c")
        async with client(founded.ports["c"], made.api_key) as ann:
            await ann.connect()
        node.life.starting = True
        peer = await Peer.connect(node.port)
        unknown = pb.Credentials(api_key="tlk_" + "a" * 16 + "_" + "b" * 43)
        assert (await peer.refused(hello=pb.Hello(version=1, credentials=unknown))).code == pb.EPOCH_CHANGING
        await peer.close()
        node.life.starting = False
