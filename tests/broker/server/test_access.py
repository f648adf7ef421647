"""What each kind of request needs, on one node and over three."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.access_table import render, shown
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog import Client, Consumer
from tidelog.errors import ForbiddenError, TidelogError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_broker.core.security.permissions import OPERATIONS, operation_name, resource_name
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node.node import Node
from tidelog_broker.server.access import AUDITED, RULES
from tidelog_broker.server.server import HANDLERS, NODES_ONLY
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def greeted(port: int, api_key: str) -> Peer:
    peer = await Peer.connect(port)
    hello = pb.Hello(version=1, client_id="raw", credentials=pb.Credentials(api_key=api_key))
    frame = await peer.ask(hello=hello)
    assert frame.envelope.WhichOneof("kind") == "hello_reply", frame.envelope
    return peer


def test_the_page_has_the_table() -> None:
    assert shown() == render(), "python -m tests.access_table"


def test_every_kind_has_a_rule_and_no_rule_is_for_nothing() -> None:
    assert set(RULES) == set(HANDLERS)
    assert set(HANDLERS) >= AUDITED


def _knows(node: Node, rule: AccessRule) -> bool:
    return node.broker.security.registry.stands("rule/" + rule.rule_id)


ASKED: dict[str, Any] = {
    "producer_begin": lambda topic: pb.ProducerBegin(entries=[{"topic_id": topic, "producer_id": 1}]),
    "publish": lambda topic: pb.Publish(entries=[{"topic_id": topic, "length": len(batch(b"x"))}]),
    "fetch": lambda topic: pb.Fetch(entries=[{"topic_id": topic}]),
    "list_offsets": lambda topic: pb.ListOffsets(entries=[{"topic_id": topic, "latest": True}]),
    "subscribe": lambda topic: pb.Subscribe(subscription_id=1, entries=[{"topic_id": topic}]),
    "compact": lambda topic: pb.Compact(entries=[{"topic_id": topic}]),
    "delete_records": lambda topic: pb.DeleteRecords(entries=[{"topic_id": topic}]),
    "commit": lambda topic: pb.Commit(group="g", entries=[{"topic_id": topic, "next_offset": 0}]),
    "committed": lambda topic: pb.Committed(group="g"),
    "group_heartbeat": lambda topic: pb.GroupHeartbeat(group="g", member_id="m" * 16),
    "group_describe": lambda topic: pb.GroupDescribe(group="g"),
    "group_delete": lambda topic: pb.GroupDelete(group="g"),
    "topic_create": lambda topic: pb.TopicCreate(name="t2"),
    "topic_describe": lambda topic: pb.TopicDescribe(name="t"),
    "topic_alter": lambda topic: pb.TopicAlter(name="t", retention_ms=1),
    "topic_delete": lambda topic: pb.TopicDelete(name="t"),
    "cluster_status": lambda topic: pb.ClusterStatus(),
    "cluster_change": lambda topic: pb.ClusterChange(drain="n"),
    "security_change": lambda topic: pb.SecurityChange(revoke_key="k"),
    "security_list": lambda topic: pb.SecurityList(what=pb.SecurityList.KEYS),
    "access_test": lambda topic: pb.AccessTest(
        principal="other", operation=pb.OP_CONSUME, resource=pb.RES_TOPIC, name="t"
    ),
    "identify": lambda topic: pb.Identify(credentials=pb.Credentials(api_key="tlk_none")),
}
"""A request of each kind that needs a permission."""

OPEN = {"hello", "peer_hello", "peer_proof", "node_announce", "metadata", "topic_list", "group_list"}
OPEN |= {"credit", "unsubscribe"}
"""Those that need none, show what may be seen, or are taken from nodes only."""


async def _code(peer: Peer, kind: str, asked: Any) -> int:
    attachment = batch(b"x") if kind == "publish" else b""
    return _code_in((await peer.ask(attachment, **{kind: asked})).envelope)


def _code_in(envelope: pb.Envelope) -> int:
    if envelope.WhichOneof("kind") == "error":
        return envelope.error.code
    reply = getattr(envelope, envelope.WhichOneof("kind") or "")
    results = getattr(reply, "results", ())
    return next((result.error.code for result in results if result.HasField("error")), 0)


async def test_each_kind_is_refused_to_who_may_nothing_and_not_to_the_admin(stand: Stand, key_file: Path) -> None:
    assert ASKED.keys() | OPEN == set(HANDLERS), "a new kind needs a line here"
    node = await stand.start(auth="required", admin_key_file=key_file)
    stranger = await stand.peer(greet=False)
    for kind, asked in ASKED.items():
        assert await _code(stranger, kind, asked(bytes(16))) == pb.HELLO_REQUIRED, kind
    wrong = pb.Hello(version=1, credentials=pb.Credentials(api_key=ADMIN[:-1] + "t"))
    assert (await stranger.refused(hello=wrong)).code == pb.UNAUTHENTICATED
    await stranger.closed()
    admin = await greeted(node.port, ADMIN)
    stand.peers.append(admin)
    topic = (await admin.create("t")).topic_id
    made = await admin.ask(security_change=pb.SecurityChange(create_key=pb.ApiKey(principal="nobody")))
    nobody = await greeted(node.port, made.envelope.security_change_reply.api_key)
    stand.peers.append(nobody)
    for kind, asked in ASKED.items():
        assert await _code(nobody, kind, asked(topic)) == pb.FORBIDDEN, kind
    for kind in NODES_ONLY:
        assert await _code(admin, kind, _empty(kind)) == pb.FORBIDDEN, kind
    assert counted(node, "tidelog_access_refused_total") == len(ASKED) - 1  # what others may do is judged elsewhere
    for kind, asked in ASKED.items():
        if kind != "topic_delete":
            assert await _code(admin, kind, asked(topic)) != pb.FORBIDDEN or kind == "cluster_change", kind
    told = (await nobody.ask(metadata=pb.Metadata())).envelope.metadata_reply
    assert not told.topics
    told = (await nobody.ask(metadata=pb.Metadata(topics=["t", "none"]))).envelope.metadata_reply
    assert [topic.error.code for topic in told.topics] == [pb.FORBIDDEN, pb.FORBIDDEN]
    assert not (await nobody.ask(topic_list=pb.TopicList())).envelope.topic_reply.topics
    await admin.ask(commit=pb.Commit(group="hidden", entries=[{"topic_id": topic, "next_offset": 0}]))
    assert (await admin.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups
    assert not (await nobody.ask(group_list=pb.GroupList())).envelope.group_list_reply.groups
    forged = await nobody.refused(topic_delete=pb.TopicDelete(name="t"), caller=pb.Caller(principal="admin"))
    assert forged.code == pb.INVALID_REQUEST


def _empty(kind: str) -> Any:
    return getattr(pb.Envelope(), kind)


def _granting(principal: str, operations: Iterable[pb.Operation], resource: pb.Resource) -> pb.SecurityChange:
    is_cluster = resource == pb.RES_CLUSTER
    rule = pb.AccessRule(principal=principal, operations=operations, resource=resource, prefix=not is_cluster)
    return pb.SecurityChange(grant=rule)


NEEDS = {kind: (RULES[kind].operation, RULES[kind].resource) for kind in ASKED} | {
    "publish": (pb.OP_PRODUCE, pb.RES_TOPIC),
    "fetch": (pb.OP_CONSUME, pb.RES_TOPIC),
    "list_offsets": (pb.OP_DESCRIBE, pb.RES_TOPIC),
    "access_test": (pb.OP_CLUSTER, pb.RES_CLUSTER),
}
"""What each kind needs, the handlers' own checks included."""


async def test_each_kind_that_is_handed_on_needs_what_its_rule_says_and_nothing_less(
    founded: Founded, key_file: Path
) -> None:
    """For each kind: who may all else may not, who may only that may; whose key was revoked or expired may not."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    asking, asked_node = founded.nodes["a"], founded.nodes["b"]
    ends = time.time_ns() // 1000 + 3_600_000_000
    async with client(founded.ports["a"], ADMIN) as admin:
        topic_id = (await admin.create_topic("t")).topic_id
        revoked = await admin.security.create_key("revoked")
        await admin.security.revoke_key(revoked.info.key_id)
        changes = [
            _granting(name, operations, resource)
            for operation, resource in sorted(set(NEEDS.values()), key=str)
            if operation is not None
            for name, operations in _with_and_without(operation, resource)
            if operations
        ]
        owner = founded.nodes[asking.broker.routes.owner(META_KEY)].broker
        for change in changes:
            await owner.security_changes.change(change)
        rules = len(changes)
        await settled(lambda: _knows_all(asked_node, rules, revoked.info.key_id), "a node never heard of it all")

        async def code(kind: str, caller: pb.Caller) -> int:
            envelope = pb.Envelope(**{kind: ASKED[kind](topic_id)}, caller=caller)
            attachment = [memoryview(batch(b"x"))] if kind == "publish" else []
            try:
                frame = await asking.broker.cluster.request(asked_node.node_id, envelope, attachment, timeout_s=20)
            except ProtocolError as error:
                return error.code
            return _code_in(frame.envelope)

        for kind, (operation, resource) in NEEDS.items():
            only, others = (name for name, _ in _with_and_without(operation, resource))
            refused = {pb.FORBIDDEN}
            assert await code(kind, pb.Caller(principal=others, expires_us=ends)) in refused, kind
            assert await code(kind, pb.Caller(principal="nobody")) in refused, kind
            assert await code(kind, pb.Caller(principal=only, identity="key/" + revoked.info.key_id)) == (
                pb.UNAUTHENTICATED
            ), kind
            assert await code(kind, pb.Caller(principal=only, expires_us=1)) == pb.UNAUTHENTICATED, kind
            if kind not in {"topic_delete", "cluster_change", "subscribe"}:
                assert await code(kind, pb.Caller(principal=only, expires_us=ends)) not in refused, kind


def _with_and_without(operation: pb.Operation | None, resource: pb.Resource) -> list[tuple[str, list[pb.Operation]]]:
    """Return a principal who may only this, and one who may all the rest with such resources."""
    assert operation is not None
    name = f"{operation_name(operation)}-{resource_name(resource)}"
    rest = OPERATIONS[resource] - {operation} - ({pb.OP_DESCRIBE} if operation != pb.OP_DESCRIBE else set())
    if operation == pb.OP_DESCRIBE:
        rest = frozenset()  # each other one allows it
    return [(f"only-{name}", [operation]), (f"not-{name}", sorted(rest))]


def _knows_all(node: Node, rules: int, key_id: str) -> bool:
    registry = node.broker.security.registry
    return registry.count("rule/") >= rules and registry.key(key_id) is None


async def _read_on(admin: Client, consumer: Consumer) -> None:
    producer = admin.producer("in-1")
    for _ in range(200):
        await producer.send(b"late")
        await asyncio.wait_for(anext(consumer), 10)


async def test_rules_hold_over_three_nodes_at_once_and_after_a_restart(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("in-1", partitions=6)
        await admin.create_topic("hidden")
        key = await admin.security.create_key("ann", roles=["etl"], note="of tests")
        rule = await admin.security.grant(AccessRule("role:etl", ("produce", "consume"), "topic", "in-", prefix=True))
        for node in founded.nodes.values():
            await settled(partial(_knows, node, rule), "a node never heard of the rule")
        for port in (founded.ports["a"], founded.ports["b"]):
            async with client(port, key.api_key) as ann:
                for partition in range(6):
                    await ann.producer("in-1").send(b"x", partition=partition)
                with pytest.raises(ForbiddenError):
                    await ann.producer("hidden").send(b"x")
                with pytest.raises(ForbiddenError):
                    await ann.delete_topic("in-1")
                assert [topic.name for topic in await ann.topics()] == ["in-1"]
                assert (await ann.security.test("consume", "topic", "in-1")).allowed
        assert [found.note for found in await admin.security.api_keys()] == ["of tests"]
        consumer_client = client(founded.ports["c"], key.api_key)
        async with consumer_client as ann, ann.consumer("in-1", start="earliest") as consumer:
            for _ in range(12):
                await asyncio.wait_for(anext(consumer), 20)
            await admin.security.revoke(rule.rule_id)
            with pytest.raises(TidelogError):
                await _read_on(admin, consumer)
        await admin.security.revoke_key(key.info.key_id)
        with pytest.raises(UnauthenticatedError):
            async with client(founded.ports["a"], key.api_key) as ann:
                await ann.connect()


async def test_an_owner_checks_again_for_whom_another_node_names(founded: Founded, key_file: Path) -> None:
    """What the node that was asked has let through is refused where the record is written."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("t")
        owner = founded.nodes["a"].broker.routes.owner(META_KEY)
        other = next(node for name, node in founded.nodes.items() if name != owner)
        asked = pb.Envelope(topic_delete=pb.TopicDelete(name="t"), caller=pb.Caller(principal="nobody"))
        with pytest.raises(ProtocolError) as refused:
            await other.broker.cluster.request(owner, asked, timeout_s=10)
        assert refused.value.code == pb.FORBIDDEN
        assert "nobody" in refused.value.message
        key = await admin.security.create_key("ann")
        rule = await admin.security.grant(AccessRule("ann", ("produce", "delete"), "topic", "t"))
        for node in founded.nodes.values():
            await settled(partial(_knows, node, rule), "a node never heard of the rule")
        callers: list[str] = []
        at = founded.nodes[owner].server.access
        check = at.check

        def watched(kind: str, request: Request) -> None:
            check(kind, request)
            if request.connection.peer_id is not None and request.session is not None:
                callers.append(f"{kind} for {request.session.principal}")

        at.check = watched  # type: ignore[method-assign]
        async with client(founded.ports[other.node_id], key.api_key) as ann:
            await ann.delete_topic("t")
        assert callers == ["topic_delete for ann"]


async def test_a_topic_that_may_not_be_read_does_not_spoil_a_fetch_of_others(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        key = await admin.security.create_key("ann")
        rule = await admin.security.grant(AccessRule("ann", ("consume",), "topic", "open"))
        for name in ("open", "closed"):
            await admin.create_topic(name)
            await admin.producer(name).send(b"x")
        ids = {topic.name: topic.topic_id for topic in await admin.topics()}
        ann = await greeted(node.port, key.api_key)
        stand.peers.append(ann)
        both = [{"topic_id": ids["closed"]}, {"topic_id": ids["open"]}]
        fetched = (await ann.ask(fetch=pb.Fetch(entries=both, wait_ms=100))).envelope.fetch_reply.results
        assert [(result.error.code, result.length > 0) for result in fetched] == [(pb.FORBIDDEN, False), (0, True)]
        latest = [entry | {"latest": True} for entry in both]
        located = (await ann.ask(list_offsets=pb.ListOffsets(entries=latest))).envelope.list_offsets_reply.results
        assert [(result.error.code, result.offset) for result in located] == [(pb.FORBIDDEN, 0), (0, 1)]
        waiting = ann.post(
            fetch=pb.Fetch(entries=[{"topic_id": ids["open"], "offset": 1}], wait_ms=20_000, min_bytes=1)
        )
        await asyncio.sleep(0.1)
        await admin.security.revoke(rule.rule_id)
        await admin.producer("open").send(b"late")
        (result,) = (await ann.reply(waiting)).envelope.fetch_reply.results
        assert (result.error.code, result.length) == (pb.FORBIDDEN, 0), "what was waited for may not be read any more"


async def test_a_key_that_is_taken_out_of_the_administrators_file_ends(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as before:
        await before.create_topic("t")
        newer = ADMIN.replace("abc", "bcd")
        await asyncio.to_thread(key_file.write_text, newer)
        await settled(lambda: not node.server.connections, "the connection that showed the old key stayed")
        async with client(node.port, newer) as after:
            assert [topic.name for topic in await after.topics()] == ["t"]
        with pytest.raises(UnauthenticatedError):
            await before.topics()


async def test_a_member_of_a_group_needs_no_right_but_that(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        await admin.producer("t").send(b"x")
        key = await admin.security.create_key("ann")
        await admin.security.grant(AccessRule("ann", ("consume",), "topic", "t"))
        await admin.security.grant(AccessRule("ann", ("group",), "group", "g"))
        async with client(node.port, key.api_key) as ann, ann.consumer("t", group="g", start="earliest") as consumer:
            assert (await asyncio.wait_for(anext(consumer), 20)).value == b"x"
            await consumer.commit()
        async with client(node.port, key.api_key) as ann:
            assert [found.next_offset for found in await ann.committed("g")] == [1]
            assert [topic.name for topic in await ann.topics(internal=True)] == ["t"]
            with pytest.raises(ForbiddenError):
                await ann.fetch("__offsets", 0, 0)
