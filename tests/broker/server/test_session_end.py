from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.peer import Peer, batch
from tests.broker.server.test_access import greeted
from tests.broker.stand import settled

from tidelog import Client
from tidelog.credentials import ApiKeyFile
from tidelog.security import AccessRule
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb


class Rotating:
    """A cluster in which a user's key was revoked; the node that the user is connected to learns it last."""

    def __init__(self, founded: Founded, topic_id: bytes, key: str, revoked: str) -> None:
        self.founded = founded
        self.topic_id = topic_id
        self.key = key
        self._revoked = revoked
        owner = founded.owner((topic_id, 0), "a")
        coordinator = founded.owner(founded.nodes["a"].broker.groups.key_of("g"), "a")
        self.asked = next(name for name in founded.nodes if name not in {owner, coordinator})

    @property
    def node(self) -> Node:
        """The node that is asked, which neither owns the topic's partition nor coordinates the group."""
        return self.founded.nodes[self.asked]

    def end_sessions(self) -> int:
        """Let open sessions of the user at the asked node be of the revoked key, which it has not noticed yet."""
        sessions = [one.session for one in self.node.server.connections if one.session is not None]
        mine = [session for session in sessions if session.principal == "user"]
        for session in mine:
            session.identity = f"key/{self._revoked}"
        return len(mine)


@pytest.fixture
async def rotating(founded: Founded, key_file: Path) -> Rotating:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    await founded.settled()
    async with client(founded.ports["a"], ADMIN) as admin:
        topic_id = (await admin.create_topic("t", partitions=1, replication_factor=1)).topic_id
        await admin.security.grant(AccessRule("user", ("produce", "describe"), "topic", "t"))
        await admin.security.grant(AccessRule("user", ("group",), "group", "g"))
        good, revoked = await admin.security.create_key("user"), await admin.security.create_key("user")
        await admin.security.revoke_key(revoked.info.key_id)

    def known() -> bool:
        registries = [node.broker.security.registry for node in founded.nodes.values()]
        ends = [registry.get(f"key/{revoked.info.key_id}") for registry in registries]
        known_to_all = all(record is not None and record.deleted for record in ends)
        return known_to_all and all(node.broker.routes.owner((topic_id, 0)) for node in founded.nodes.values())

    await settled(known, "a node never heard of it all")
    return Rotating(founded, topic_id, good.api_key, revoked.info.key_id)


@asynccontextmanager
async def closing(peer: Peer) -> AsyncIterator[Peer]:
    try:
        yield peer
    finally:
        await peer.close()


async def test_session_ends_when_another_node_knows_the_revocation(rotating: Rotating) -> None:
    record = batch(b"x")
    commit = pb.Commit(group="g", entries=[pb.CommitEntry(topic_id=rotating.topic_id, next_offset=0)])
    publish = pb.Publish(entries=[pb.PublishEntry(topic_id=rotating.topic_id, length=len(record))])
    for attachment, asked in ((b"", {"commit": commit}), (record, {"publish": publish})):
        async with closing(await greeted(rotating.founded.ports[rotating.asked], rotating.key)) as peer:
            assert rotating.end_sessions() == 1
            peer.post(attachment, **asked)
            told = (await peer.event()).envelope
            assert (told.correlation_id, told.error.code) == (0, pb.UNAUTHENTICATED), asked
            assert told.error.message == "the API key was revoked"
            await peer.closed()


async def test_client_with_a_replaced_key_is_not_refused(rotating: Rotating, tmp_path: Path) -> None:
    shown = tmp_path / "user.key"
    shown.touch(mode=0o600)
    shown.write_text(rotating.key)
    address = f"127.0.0.1:{rotating.founded.ports[rotating.asked]}"
    async with Client(address, credentials=ApiKeyFile(shown), request_timeout_s=10) as user:
        await user.topic("t")
        assert rotating.end_sessions() == 1
        assert (await user.commit("g", "t", {0: 0}))[0].next_offset == 0
