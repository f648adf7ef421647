"""The permissions of each kind of request, on one node and on three."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tests.access_table import HEADS, render, shown
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, founded_with_keys
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog import Client, Consumer
from tidelog.errors import ForbiddenError, QuotaExceededError, TidelogError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node.node import Node
from tidelog_broker.server.access import RULES
from tidelog_broker.server.audited_requests import AUDITED
from tidelog_broker.server.server import HANDLERS
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX


async def greeted(port: int, api_key: str) -> Peer:
    peer = await Peer.connect(port)
    hello = pb.Hello(version=1, client_id="raw", credentials=pb.Credentials(api_key=api_key))
    frame = await peer.ask(hello=hello)
    assert frame.envelope.WhichOneof("kind") == "hello_reply", frame.envelope
    return peer


@pytest.mark.parametrize("head", HEADS)
def test_access_page_contains_the_generated_table(head: str) -> None:
    assert shown(head) == render(head), "python -m tests.access_table"


def test_audited_kinds_are_handled_kinds() -> None:
    assert set(HANDLERS) >= AUDITED
    assert all(RULES[kind].operation for kind in AUDITED), "a line names the operation"


@pytest.mark.parametrize("kind", ["producer_begin", "compact", "delete_records"])
def test_too_many_entries_are_refused_before_the_first_check(kind: str) -> None:
    envelope = pb.Envelope()
    entries = getattr(envelope, kind).entries
    for _ in range(ENTRIES_PER_REQUEST_MAX + 1):
        entries.add()
    nobody = cast("Any", None)
    with pytest.raises(ProtocolError) as refused:
        RULES[kind].check(nobody, nobody, envelope)
    assert refused.value.code == pb.INVALID_REQUEST


def _knows(node: Node, rule: AccessRule) -> bool:
    return node.broker.security.registry.exists("rule/" + rule.rule_id)


async def _read_on(admin: Client, consumer: Consumer) -> None:
    producer = admin.producer("in-1")
    for _ in range(200):
        await producer.send(b"late")
        await asyncio.wait_for(anext(consumer), 10)


async def test_rules_apply_on_all_nodes_and_after_a_restart(founded: Founded, key_file: Path) -> None:
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


async def test_refusal_by_id_does_not_reveal_the_topic_name(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("merger-with-x")
        key = await admin.security.create_key("ann")
    topic_id = next(record.topic_id for record in node.broker.topics.live() if record.name == "merger-with-x")
    place: dict[str, Any] = {"topic_id": topic_id, "partition": 0}
    requests: list[dict[str, Any]] = [
        {"fetch": pb.Fetch(entries=[pb.FetchEntry(**place)])},
        {"list_offsets": pb.ListOffsets(entries=[pb.ListOffsetsEntry(**place, latest=True)])},
        {"delete_records": pb.DeleteRecords(entries=[pb.DeleteRecordsEntry(**place)])},
        {"compact": pb.Compact(entries=[pb.CompactEntry(**place)])},
        {"producer_begin": pb.ProducerBegin(entries=[pb.ProducerBeginEntry(**place)])},
    ]
    async with contextlib.AsyncExitStack() as stack:
        peer = await greeted(node.port, key.api_key)
        stack.push_async_callback(peer.close)
        for asked in requests:
            said = str((await peer.ask(**asked)).envelope)
            assert "has no permission" in said, asked
            assert topic_id.hex() in said, asked
            assert "merger" not in said, asked


async def test_owner_checks_the_forwarded_caller_again(founded: Founded, key_file: Path) -> None:
    """A request that the receiving node has allowed is refused by the node that stores the record."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    await founded.settled()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("t")
        owner = founded.nodes["a"].broker.routes.owner(META_KEY)
        other = next(node for name, node in founded.nodes.items() if name != owner)
        asked = pb.Envelope(topic_delete=pb.TopicDelete(name="t"), caller=pb.Caller(principal="nobody"))
        with pytest.raises(ProtocolError) as refused:
            await other.broker.cluster.request(owner, asked, timeout_s=10)
        assert refused.value.code == pb.FORBIDDEN
        assert "nobody" in refused.value.message
        for identity in ("key/1", "user/1"):  # an older node has let it in as the administrator
            asked.caller.CopyFrom(pb.Caller(principal="admin", identity=identity))
            with pytest.raises(
                ProtocolError, match="an API key or user in the cluster's records cannot act"
            ) as refused:
                await other.broker.cluster.request(owner, asked, timeout_s=10)
            assert refused.value.code == pb.UNAUTHENTICATED
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


async def test_node_without_rules_refuses_only_retriably(founded: Founded, key_file: Path) -> None:
    """Other nodes may hand requests on to a new one before it has read who may do what."""
    async with founded_with_keys(founded, key_file) as admin:
        await admin.security.grant(AccessRule("ann", ("describe",), "group", "g"))
        joining = asyncio.ensure_future(founded.join("d"))
        asked = pb.Envelope(group_describe=pb.GroupDescribe(group="g"), caller=pb.Caller(principal="ann"))
        handing = founded.nodes["a"].broker.cluster
        codes: set[pb.ErrorCode] = set()
        async with asyncio.timeout(30):
            while pb.NOT_OWNER not in codes:  # the rules let ann in, and the group is coordinated elsewhere
                for node_id in handing.linked - set("abc"):
                    with pytest.raises(ProtocolError) as answered:
                        await handing.request(node_id, asked, timeout_s=10)
                    codes.add(answered.value.code)
                await asyncio.sleep(0.005)
        await joining
        assert codes <= {pb.NOT_OWNER, pb.EPOCH_CHANGING}


async def reader_of_one_of_two(stand: Stand, port: int, admin: Client) -> tuple[Peer, AccessRule, dict[str, bytes]]:
    """Return a caller that may read the topic `open`, the rule that allows it, and the ids of it and of `closed`.

    Each topic has a record.
    """
    key = await admin.security.create_key("ann")
    rule = await admin.security.grant(AccessRule("ann", ("consume",), "topic", "open"))
    for name in ("open", "closed"):
        await admin.create_topic(name)
        await admin.producer(name).send(b"x")
    ann = await greeted(port, key.api_key)
    stand.peers.append(ann)
    return ann, rule, {topic.name: topic.topic_id for topic in await admin.topics()}


async def test_forbidden_topic_does_not_fail_other_fetch_entries(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        ann, rule, ids = await reader_of_one_of_two(stand, node.port, admin)
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
        assert (result.error.code, result.length) == (pb.FORBIDDEN, 0), "the permission was revoked during the wait"


async def test_forbidden_subscription_reveals_and_sends_nothing(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        ann, rule, ids = await reader_of_one_of_two(stand, node.port, admin)
        nowhere = [{"topic_id": ids["closed"], "partition": 99}, {"topic_id": ids["open"], "partition": 99}]
        asked = pb.Subscribe(subscription_id=1, entries=nowhere)
        answered = (await ann.ask(subscribe=asked)).envelope.subscribe_reply.results
        assert [result.error.code for result in answered] == [pb.FORBIDDEN, pb.UNKNOWN_PARTITION]

        access = node.broker.partitions.get(ids["open"], 0).access
        given_out = access.ensure_given_out

        async def slowly(offset: int, record_epoch: int | None = None) -> None:
            await admin.security.revoke(rule.rule_id)
            await given_out(offset, record_epoch)

        access.ensure_given_out = slowly  # type: ignore[method-assign]
        asked = pb.Subscribe(subscription_id=2, entries=[{"topic_id": ids["open"]}])
        (result,) = (await ann.ask(subscribe=asked)).envelope.subscribe_reply.results
        assert result.error.code == pb.FORBIDDEN, "the right was taken while it was looked where it begins"


async def test_key_removed_from_the_administrators_file_ends_its_sessions(stand: Stand, key_file: Path) -> None:
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


async def test_group_member_needs_only_group_and_read_permissions(stand: Stand, key_file: Path) -> None:
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


async def test_wildcard_topic_rights_exclude_internal_topics(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        key = await admin.security.create_key("ann")
        await admin.security.grant(AccessRule("ann", ("all",), "topic", "", prefix=True))
        async with client(node.port, key.api_key) as ann:
            assert [topic.name for topic in await ann.topics(internal=True)] == ["t"]
            with pytest.raises(ForbiddenError):
                await ann.fetch("__meta", 0, 0)
        assert (await admin.security.test("consume", "topic", "t", principal="ann")).allowed
        assert not (await admin.security.test("consume", "topic", "__meta", principal="ann")).allowed


async def test_administrator_of_the_settings_is_exempt_from_quotas(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file, admin="root")
    async with client(node.port, ADMIN) as root:
        await root.security.set_quota("admin", Quota(connections=0))
    node = await stand.restart(admin="admin")
    with pytest.raises(QuotaExceededError):
        async with client(node.port, ADMIN) as admin:
            await admin.topics()
    node = await stand.restart(admin="rescue")
    async with client(node.port, ADMIN) as rescue:
        await rescue.security.remove_quota("admin")
    node = await stand.restart(admin="admin")
    async with client(node.port, ADMIN) as admin:
        assert await admin.topics() == []
