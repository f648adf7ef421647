"""Gateway tickets at the native port, on one node and on three."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.peer import Peer, batch
from tests.broker.server.test_access import greeted
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.security import AccessRule
from tidelog_broker.core.security.tickets import SKEW_MS, TICKET_MS, Tickets
from tidelog_broker.node.node import Node
from tidelog_broker.server import gateway_tickets
from tidelog_proto import broker_pb2 as pb


@dataclass(slots=True)
class Gate:
    """A gateway's connection to a node, the key of ann, who may read and write `ann-1`, and its topic."""

    node: Node
    admin: Client
    peer: Peer
    ann: str
    ann_id: str
    topic_id: bytes
    rule_id: str

    async def ticket(self, key: str | None = None) -> bytes:
        reply = (await self.peer.ask(identify=identify(key or self.ann))).envelope.identify_reply
        assert not reply.error.code, reply
        return reply.ticket

    async def code(self, ticket: bytes, **kind: Any) -> int:
        return code_of(await self.peer.ask(batch(b"x") if "publish" in kind else b"", on_behalf=ticket, **kind))


def identify(key: str) -> pb.Identify:
    return pb.Identify(credentials=pb.Credentials(api_key=key))


def code_of(frame: Any) -> int:
    envelope = frame.envelope
    if envelope.WhichOneof("kind") == "error":
        return int(envelope.error.code)
    results = getattr(getattr(envelope, envelope.WhichOneof("kind")), "results", ())
    return next((int(result.error.code) for result in results if result.HasField("error")), 0)


def publish(topic_id: bytes) -> pb.Publish:
    return pb.Publish(entries=[{"topic_id": topic_id, "length": len(batch(b"x"))}])


async def keyed(admin: Client, principal: str, *rules: AccessRule) -> tuple[str, str, list[str]]:
    key = await admin.security.create_key(principal)
    return key.api_key, key.info.key_id, [(await admin.security.grant(rule)).rule_id for rule in rules]


@pytest.fixture
async def gate(stand: Stand, key_file: Path) -> Any:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        own, _, _ = await keyed(admin, "gate", AccessRule("gate", ("impersonate",), "cluster"))
        rule = AccessRule("ann", ("produce", "consume"), "topic", "ann-1")
        ann, ann_id, (rule_id,) = await keyed(admin, "ann", rule)
        topic = await admin.create_topic("ann-1")
        await admin.create_topic("hidden")
        peer = await greeted(node.port, own)
        stand.peers.append(peer)
        yield Gate(node, admin, peer, ann, ann_id, topic.topic_id, rule_id)


async def test_request_with_a_ticket_uses_the_callers_rights(gate: Gate) -> None:
    ticket = await gate.ticket()
    assert await gate.code(ticket, publish=publish(gate.topic_id)) == 0
    assert await gate.code(ticket, topic_delete=pb.TopicDelete(name="ann-1")) == pb.FORBIDDEN
    assert code_of(await gate.peer.ask(batch(b"x"), publish=publish(gate.topic_id))) == pb.FORBIDDEN, "its own right"
    listed = (await gate.peer.ask(topic_list=pb.TopicList(), on_behalf=ticket)).envelope.topic_reply
    assert [topic.name for topic in listed.topics] == ["ann-1"]
    assert not (await gate.peer.ask(topic_list=pb.TopicList())).envelope.topic_reply.topics
    assert await gate.code(b"", cluster_status=pb.ClusterStatus()) == 0, "it may see whether the cluster is well"
    told = await gate.peer.ask(
        access_test=pb.AccessTest(operation=pb.OP_CONSUME, resource=pb.RES_TOPIC, name="hidden"), on_behalf=ticket
    )
    assert not told.envelope.access_test_reply.allowed


async def test_errors_of_caller_and_gateway_are_distinct(gate: Gate) -> None:
    wrong = (await gate.peer.ask(identify=identify("tlk_bcdefghijk234567_" + "w" * 43))).envelope
    assert wrong.identify_reply.error.code == pb.UNAUTHENTICATED
    assert not wrong.identify_reply.ticket
    none = (await gate.peer.ask(identify=pb.Identify())).envelope
    assert none.identify_reply.error.code == pb.UNAUTHENTICATED
    old = await gate.admin.security.create_key("ann", expires_us=time.time_ns() // 1000 + 200_000)
    reply = pb.IdentifyReply()
    for _ in range(400):
        reply = (await gate.peer.ask(identify=identify(old.api_key))).envelope.identify_reply
        if reply.error.code:
            break
        await asyncio.sleep(0.05)
    assert reply.error.code == pb.CREDENTIALS_EXPIRED


async def test_tickets_need_permission_and_their_holder(gate: Gate, stand: Stand) -> None:
    ticket = await gate.ticket()
    ann = await greeted(gate.node.port, gate.ann)
    other_key, _, _ = await keyed(gate.admin, "other", AccessRule("other", ("impersonate",), "cluster"))
    other = await greeted(gate.node.port, other_key)
    stand.peers += [ann, other]
    listing = pb.TopicList()
    assert code_of(await ann.ask(topic_list=listing, on_behalf=ticket)) == pb.FORBIDDEN
    assert code_of(await ann.ask(identify=identify(gate.ann))) == pb.FORBIDDEN
    assert await gate.code(ticket, topic_list=listing) == 0
    for _ in range(2):  # also while the node remembers it
        assert code_of(await other.ask(topic_list=listing, on_behalf=ticket)) == pb.TICKET_REFUSED
    assert await gate.code(ticket, topic_list=listing) == 0
    assert await gate.code(ticket, identify=identify(gate.ann)) == pb.INVALID_REQUEST
    assert await gate.code(ticket, hello=pb.Hello(version=1)) == pb.INVALID_REQUEST
    tickets = gate.node.broker.security.tickets
    caller = pb.Caller(principal="admin")
    old_us = time.time_ns() // 1000 - (TICKET_MS + SKEW_MS) * 1000
    for forged in (
        ticket[:-1],
        b"x" * 32 + ticket[32:],
        ticket[:32] + pb.Ticket(caller=caller, holder="gate", ends_us=1 << 60).SerializeToString(),
        tickets.signed(caller, holder="gate", now_us=old_us),
        tickets.signed(pb.Caller(principal="admin", identity="key/none"), holder="gate", now_us=old_us + (1 << 26)),
        tickets.signed(
            pb.Caller(principal="admin", identity="key/" + gate.ann_id), holder="gate", now_us=old_us + (1 << 26)
        ),
        b"garbage",
    ):
        assert await gate.code(forged, topic_delete=pb.TopicDelete(name="ann-1")) == pb.TICKET_REFUSED


async def test_node_without_authentication_refuses_tickets(stand: Stand) -> None:
    node = await stand.start()
    peer = await Peer.connect(node.port)
    stand.peers.append(peer)
    await peer.ask(hello=pb.Hello(version=1))
    assert code_of(await peer.ask(topic_list=pb.TopicList(), on_behalf=b"x")) == pb.INVALID_REQUEST
    assert code_of(await peer.ask(identify=pb.Identify())) == pb.INVALID_REQUEST


async def test_revoked_key_ends_tickets_and_subscriptions(gate: Gate) -> None:
    ticket = await gate.ticket()
    assert await gate.code(ticket, publish=publish(gate.topic_id)) == 0
    await gate.peer.ask(
        subscribe=pb.Subscribe(
            subscription_id=1, entries=[{"topic_id": gate.topic_id}], credit_records=9, credit_bytes=1 << 20
        ),
        on_behalf=ticket,
    )
    pushed = await gate.peer.event()
    assert pushed.envelope.message_event.record_count == 1
    waiting = gate.peer.post(
        fetch=pb.Fetch(entries=[{"topic_id": gate.topic_id, "offset": 1}], wait_ms=20_000, min_bytes=1),
        on_behalf=ticket,
    )
    await gate.peer.ask(topic_list=pb.TopicList())  # the fetch waits by now
    await gate.admin.security.revoke_key(gate.ann_id)
    ended = await gate.peer.event()
    assert ended.envelope.subscription_ended.error.code == pb.TICKET_REFUSED
    assert "revoked" in ended.envelope.subscription_ended.error.message
    await gate.admin.producer("ann-1").send(b"late")
    assert code_of(await gate.peer.reply(waiting)) == pb.TICKET_REFUSED
    assert await gate.code(ticket, publish=publish(gate.topic_id)) == pb.TICKET_REFUSED
    assert not gate.peer.ended.is_set(), "the connection is that of all the gateway's callers"


async def test_revoked_rights_of_caller_or_gateway_end_a_subscription(gate: Gate) -> None:
    ticket = await gate.ticket()
    asked = partial(pb.Subscribe, entries=[{"topic_id": gate.topic_id}], credit_records=9, credit_bytes=1 << 20)
    await gate.peer.ask(subscribe=asked(subscription_id=1), on_behalf=ticket)
    await gate.admin.security.revoke(gate.rule_id)
    ended = await gate.peer.event()
    assert ended.envelope.subscription_ended.error.code == pb.FORBIDDEN
    await gate.admin.security.grant(AccessRule("ann", ("consume",), "topic", "ann-1"))
    await gate.peer.ask(subscribe=asked(subscription_id=2), on_behalf=ticket)
    (impersonating,) = [rule for rule in await gate.admin.security.rules() if rule.operations == ("impersonate",)]
    await gate.admin.security.revoke(impersonating.rule_id)
    ended = await gate.peer.event()
    assert ended.envelope.subscription_ended.error.code == pb.TICKET_REFUSED
    assert await gate.code(ticket, topic_list=pb.TopicList()) == pb.FORBIDDEN


async def test_subscription_ends_when_its_caller_expires(gate: Gate) -> None:
    soon = await gate.admin.security.create_key("ann", expires_us=time.time_ns() // 1000 + 1_500_000)
    ticket = await gate.ticket(soon.api_key)
    await gate.peer.ask(
        subscribe=pb.Subscribe(subscription_id=1, entries=[{"topic_id": gate.topic_id}]), on_behalf=ticket
    )
    ended = await gate.peer.event()
    assert "expired" in ended.envelope.subscription_ended.error.message
    assert await gate.code(ticket, topic_list=pb.TopicList()) == pb.TICKET_REFUSED
    await gate.peer.ask(unsubscribe=pb.Unsubscribe(subscription_id=1))


async def test_evicted_tickets_are_verified_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_tickets, "TICKETS_MAX", 2)
    tickets = [await gate.ticket() for _ in range(2)] + [await gate.ticket(ADMIN)]
    for ticket in tickets * 2:
        assert await gate.code(ticket, topic_list=pb.TopicList()) == 0


def _is_gone(node: Node, key_id: str) -> bool:
    return not node.broker.security.registry.exists("key/" + key_id)


async def test_tickets_are_valid_at_every_node_and_forwarded(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        topic = await admin.create_topic("ann-1", partitions=3)
        own, _, _ = await keyed(admin, "gate", AccessRule("gate", ("impersonate",), "cluster"))
        ann, ann_id, (rule_id,) = await keyed(admin, "ann", AccessRule("ann", ("produce",), "topic", "ann-1"))
        for node in founded.nodes.values():
            registry = node.broker.security.registry
            await settled(partial(registry.exists, "rule/" + rule_id), "a node never heard of the rule")
        peers = {name: await greeted(node.port, own) for name, node in founded.nodes.items()}
        ticket = (await peers["a"].ask(identify=identify(ann))).envelope.identify_reply.ticket
        for name, peer in peers.items():
            for partition in range(3):  # two of three times at another node
                entry = {"topic_id": topic.topic_id, "partition": partition, "length": len(batch(b"x"))}
                asked = pb.Publish(entries=[entry])
                assert code_of(await peer.ask(batch(b"x"), publish=asked, on_behalf=ticket)) == 0, name
            refused = await peer.ask(topic_delete=pb.TopicDelete(name="ann-1"), on_behalf=ticket)
            assert code_of(refused) == pb.FORBIDDEN
        await admin.security.revoke_key(ann_id)
        for node in founded.nodes.values():
            await settled(partial(_is_gone, node, ann_id), "a node never heard of the end of the key")
        for peer in peers.values():
            assert code_of(await peer.ask(topic_list=pb.TopicList(), on_behalf=ticket)) == pb.TICKET_REFUSED
            await peer.close()


async def test_tickets_survive_a_change_of_the_clusters_secret(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    secret = founded.path / "secret"
    async with client(founded.ports["a"], ADMIN) as admin:
        own, _, _ = await keyed(admin, "gate", AccessRule("gate", ("impersonate",), "cluster"))
        peers = [await greeted(node.port, own) for node in founded.nodes.values()]
        ticket = (await peers[0].ask(identify=identify(ADMIN))).envelope.identify_reply.ticket
        before = secret.read_text()
        await asyncio.to_thread(secret.write_text, f"another secret for tests\n{before}\n")
        for node, peer in zip(founded.nodes.values(), peers, strict=True):
            tickets = node.broker.security.tickets
            await settled(partial(_signs_anew, tickets, ticket), "a node never read the new secret")
            assert code_of(await peer.ask(topic_list=pb.TopicList(), on_behalf=ticket)) == 0
        newer = (await peers[0].ask(identify=identify(ADMIN))).envelope.identify_reply.ticket
        assert code_of(await peers[1].ask(topic_list=pb.TopicList(), on_behalf=newer)) == 0
        for peer in peers:
            await peer.close()


def _signs_anew(tickets: Tickets, ticket: bytes) -> bool:
    """Whether a node would sign what this ticket says otherwise by now."""
    said = pb.Ticket.FromString(ticket[32:])
    signed = tickets.signed(said.caller, holder=said.holder, now_us=said.ends_us - TICKET_MS * 1000)
    return signed != ticket
