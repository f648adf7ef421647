"""Each kind of request without, with wrong, right and revoked permissions: direct and forwarded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access_rows import (
    GREETINGS,
    GROUP,
    NEVER_HANDED_ON,
    NODES,
    OWN,
    ROWS,
    SHOWN,
    TIMES,
    World,
    code_in,
    named_in,
    tells_of,
)
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, founded_with_keys
from tests.broker.peer import Peer
from tests.broker.stand import settled
from tests.proto.schemas import schema_of

from tidelog import Client
from tidelog.security import AccessRule, NewKey
from tidelog_broker.core.security.permissions import OPERATIONS, operation_name, resource_name
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node.node import Node
from tidelog_broker.server.access import RULES
from tidelog_broker.server.server import HANDLERS, NODES_ONLY
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.data_types import INT32
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_messages import message_of_schema

NEEDS = sorted({(row.operation, row.resource) for row in ROWS.values()})
WRONG = ADMIN[:-1] + "t"
"""The id of a key that there is, and another secret."""


def test_each_kind_has_one_row_and_a_rule() -> None:
    groups = [ROWS.keys(), SHOWN.keys(), OWN.keys(), GREETINGS, NODES]
    kinds = [kind for group in groups for kind in group]
    assert len(kinds) == len(set(kinds)), "a kind has one row"
    assert set(kinds) == set(HANDLERS) | NODES_ONLY, "a new kind needs a row in tests/broker/access_rows.py"
    assert set(RULES) == set(HANDLERS)
    for kind, row in ROWS.items():
        assert f"`{operation_name(row.operation)}` on" in RULES[kind].words, "the page says what the row says"
    assert {(operation, resource) for resource, known in OPERATIONS.items() for operation in known} == set(NEEDS), (
        "a right that nothing needs, or one that no row has"
    )


def _of(need: tuple[pb.Operation, pb.Resource]) -> str:
    return f"{operation_name(need[0])}-{resource_name(need[1])}"


@dataclass(frozen=True, slots=True)
class Everybody:
    """A cluster of three nodes, and for each right one who has it alone, and one who has all but that.

    `asked` is the node that clients are connected to. It owns nothing that requests are about, if that can be.
    """

    founded: Founded
    admin: Client
    keys: dict[str, NewKey]
    topic_id: bytes
    typed_id: bytes

    def owner(self, at: str) -> str:
        """Return who answers requests of a row."""
        broker = self.founded.nodes["a"].broker
        where = {"meta": META_KEY, "group": broker.groups.key_of(GROUP), "topic": (self.topic_id, 0)}
        return broker.routes.owner(where[at]) if at in where else "a"

    def owner_of(self, kind: str, world: World) -> str:
        """Return `owner` of a request, which may be about a group of its own."""
        group = getattr(ROWS[kind].asked(world), "group", "")
        broker = self.founded.nodes["a"].broker
        return broker.routes.owner(broker.groups.key_of(group)) if group else self.owner(ROWS[kind].at)

    def world(self, surface: str) -> World:
        return World(self.topic_id, self.typed_id, self.keys["nothing"].api_key, surface)

    async def greeted(self, node: str, api_key: str) -> Peer:
        peer = await Peer.connect(self.founded.ports[node])
        await peer.greet(api_key=api_key)
        return peer


@pytest.fixture
async def everybody(founded: Founded, key_file: Path) -> AsyncIterator[Everybody]:
    async with founded_with_keys(founded, key_file) as admin:
        topic = await admin.create_topic("t", cleanup="compact")
        typed_id = await _create_typed(founded.ports["a"])
        for surface in TIMES:
            await admin.create_topic("doomed-" + surface.replace(" ", "-"))
            await admin.commit(f"gone-{surface}", "t", {0: 0})
        await admin.commit(GROUP, "t", {0: 0})
        keys = {"nothing": await admin.security.create_key("nothing")}
        rules: list[str] = []

        async def grant(principal: str, operation: str, resource: pb.Resource, *, deny: bool = False) -> None:
            kind = resource_name(resource)
            rule = AccessRule(principal, (operation,), kind, prefix=kind != "cluster", deny=deny)
            rules.append((await admin.security.grant(rule)).rule_id)

        async def two(need: tuple[pb.Operation, pb.Resource]) -> None:
            operation, resource = need
            only, others = f"only-{_of(need)}", f"not-{_of(need)}"
            keys[only], keys[others] = [await admin.security.create_key(name) for name in (only, others)]
            await grant(only, operation_name(operation), resource)
            await grant(others, operation_name(operation), resource, deny=True)
            for each in OPERATIONS:
                await grant(others, "all", each)

        await asyncio.gather(*map(two, NEEDS))
        for node in founded.nodes.values():
            await settled(partial(_knows_all, node, rules, keys), "a node never heard of it all")
            await settled(partial(node.broker.topics.exists, "doomed-handed-on"), "nor of the topics")
        yield Everybody(founded, admin, keys, topic.topic_id, typed_id)


async def _create_typed(port: int) -> bytes:
    peer = await Peer.connect(port)
    await peer.greet(api_key=ADMIN)
    schema = message_of_schema(schema_of(Field(0, "n", INT32)))
    made = await peer.ask(topic_create=pb.TopicCreate(name="typed", schema=schema))
    await peer.close()
    return made.envelope.topic_reply.topics[0].topic_id


def _knows_all(node: Node, rules: list[str], keys: dict[str, NewKey]) -> bool:
    registry = node.broker.security.registry
    known = all(registry.exists("rule/" + rule) for rule in rules)
    return known and all(registry.key(key.info.key_id) is not None for key in keys.values())


async def test_each_kind_needs_exactly_its_permission(everybody: Everybody) -> None:
    """Asked of a node that has to hand on what another one owns, and then does so with the caller's name."""
    world, keys = everybody.world("native"), everybody.keys
    owner = everybody.owner("topic")
    asked = "b" if owner == "a" else "a"
    peers: dict[tuple[str, str], Peer] = {}
    try:
        for node in (asked, owner):
            peers[node, "nobody"] = await Peer.connect(everybody.founded.ports[node])
            for who, key in keys.items():
                peers[node, who] = await everybody.greeted(node, key.api_key)
        for kind, row in ROWS.items():
            name, request, node = _of((row.operation, row.resource)), row.asked(world), owner if row.itself else asked
            for who, code in (
                ("nobody", pb.HELLO_REQUIRED),
                ("nothing", pb.FORBIDDEN),
                (f"not-{name}", pb.FORBIDDEN),
                (f"only-{name}", 0),
            ):
                envelope = (await peers[node, who].ask(row.attachment, **{kind: request})).envelope
                assert code_in(envelope) == code, (kind, who, envelope)
                assert row.resource == pb.RES_TOPIC or not tells_of(world.topic_id, envelope, request), (kind, who)
        stranger = peers[asked, "nobody"]
        for kind, request in SHOWN.items():
            what = "group" if kind == "group_list" else "topic"
            for who, shows in (("nothing", False), (f"not-describe-{what}", False), (f"only-describe-{what}", True)):
                assert bool(named_in((await peers[asked, who].ask(**{kind: request})).envelope)) is shows, (kind, who)
            assert (await stranger.refused(**{kind: request})).code == pb.HELLO_REQUIRED
        for kind, request in OWN.items():
            assert (await stranger.refused(**{kind: request})).code == pb.HELLO_REQUIRED, kind
        admin = peers[asked, "admin"] = await everybody.greeted(asked, ADMIN)
        for kind in NODES:
            for peer in (stranger, admin):
                assert (await peer.refused(**{kind: getattr(pb.Envelope(), kind)})).code == pb.FORBIDDEN, kind
        forged = await admin.refused(topic_delete=pb.TopicDelete(name="t"), caller=pb.Caller(principal="admin"))
        assert forged.code == pb.INVALID_REQUEST, "no client says for whom it asks"
        await _revoke(everybody, {who: peer for (node, who), peer in peers.items() if node == asked})
    finally:
        await asyncio.gather(*(peer.close() for peer in peers.values()))


async def _revoke(everybody: Everybody, peers: dict[str, Peer]) -> None:
    """Revoke the keys by which all was done: sessions end, and nothing is done for who shows them, or a wrong one."""
    only = [name for name in everybody.keys if name.startswith("only-")]
    for name in only:
        await everybody.admin.security.revoke_key(everybody.keys[name].info.key_id)
        error = (await peers[name].event()).envelope.error
        assert (error.code, error.message) == (pb.UNAUTHENTICATED, "the API key was revoked"), name
        await peers[name].closed()
    world = everybody.world("native")
    for kind in (*ROWS, *SHOWN, *OWN):
        if kind in ROWS:
            row = ROWS[kind]
            shown = everybody.keys[f"only-{_of((row.operation, row.resource))}"].api_key
            asked, attachment = row.asked(world), row.attachment
        else:
            shown, asked, attachment = everybody.keys["only-describe-topic"].api_key, (SHOWN | OWN)[kind], b""
        for api_key in (shown, WRONG):
            peer = await Peer.connect(everybody.founded.ports["a"])
            try:
                hello = peer.post(hello=pb.Hello(version=1, credentials=pb.Credentials(api_key=api_key)))
                after = peer.post(attachment, **{kind: asked})  # sent at once, before the answer
                assert (await peer.reply(hello)).envelope.error.code == pb.UNAUTHENTICATED, kind
                with contextlib.suppress(ConnectionResetError):  # it is not even answered
                    assert (await peer.reply(after)).envelope.error.code == pb.HELLO_REQUIRED, kind
                await peer.closed()
            finally:
                await peer.close()


async def test_forwarded_requests_are_authorized_again(everybody: Everybody) -> None:
    """For whom it is asked is judged where it is done: at the owner, as one that knows no client would."""
    keys, world, founded = everybody.keys, everybody.world("handed on"), everybody.founded
    ends = time.time_ns() // 1000 + 3_600_000_000
    gone = await everybody.admin.security.create_key("only-gone")
    await everybody.admin.security.revoke_key(gone.info.key_id)
    identity = "key/" + gone.info.key_id
    for node in founded.nodes.values():
        await settled(partial(_is_revoked, node, identity), "a node never heard of the revocation")

    async def asked(kind: str, owner: str, caller: pb.Caller, request: Any, attachment: bytes = b"") -> pb.Envelope:
        broker = next(node for name, node in founded.nodes.items() if name != owner).broker
        envelope = pb.Envelope(**{kind: request}, caller=caller)
        views = [memoryview(attachment)] if attachment else []
        try:
            return (await broker.cluster.request(owner, envelope, views, timeout_s=20)).envelope
        except ProtocolError as error:
            return pb.Envelope(error=error.to_message())

    for kind, row in ROWS.items():
        owner, name, request = everybody.owner_of(kind, world), _of((row.operation, row.resource)), row.asked(world)
        right = pb.Caller(principal=f"only-{name}", expires_us=ends, identity="key/" + keys[f"only-{name}"].info.key_id)
        revoked = pb.Caller(principal=f"only-{name}", identity=identity)
        for caller, code in (
            (pb.Caller(), pb.FORBIDDEN),
            (pb.Caller(principal="nothing"), pb.FORBIDDEN),
            (pb.Caller(principal=f"not-{name}", expires_us=ends), pb.FORBIDDEN),
            (revoked, pb.UNAUTHENTICATED),
            (pb.Caller(principal=f"only-{name}", expires_us=1), pb.UNAUTHENTICATED),
            (right, NEVER_HANDED_ON.get(kind, 0)),
        ):
            envelope = await asked(kind, owner, caller, request, row.attachment)
            assert code_in(envelope) == code, (kind, caller, envelope)
            assert row.resource == pb.RES_TOPIC or not tells_of(world.topic_id, envelope, request), (kind, caller)
    (_, partition) = founded.nodes["a"].broker.groups.key_of(GROUP)
    for kind, request in {**SHOWN, "group_list": pb.GroupList(partition=partition)}.items():
        what = "group" if kind == "group_list" else "topic"
        for who, shows in (("nothing", False), (f"not-describe-{what}", False), (f"only-describe-{what}", True)):
            told = [named_in(await asked(kind, node, pb.Caller(principal=who), request)) for node in founded.nodes]
            assert any(told) is shows, (kind, who, told)
        envelope = await asked(kind, "a", pb.Caller(principal=f"only-describe-{what}", identity=identity), request)
        assert code_in(envelope) == pb.UNAUTHENTICATED, kind


def _is_revoked(node: Node, identity: str) -> bool:
    record = node.broker.security.registry.get(identity)
    return record is not None and record.deleted
