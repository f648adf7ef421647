"""The topic `__audit`: its lines from every node, its readers, and that requests do not wait for it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client, counted
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import AccessError, TidelogError
from tidelog_broker.core.security.session import Session
from tidelog_broker.node.node import Node
from tidelog_broker.server import audit_topic
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import AUDIT_TOPIC


async def lines(admin: Client, last: str) -> list[dict[str, Any]]:
    """Read until a line has this in it."""
    found: list[dict[str, Any]] = []
    async with admin.consumer(AUDIT_TOPIC, start="earliest") as consumer, asyncio.timeout(30):
        async for record in consumer:
            assert record.value is not None
            found.append(json.loads(record.value))
            if last in record.value.decode():
                return found
    return found


def has_topic(node: Node) -> bool:
    return node.broker.topics.exists(AUDIT_TOPIC)


async def test_audit_topic_is_readable_only_with_cluster_permission(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    assert not has_topic(node), "the first line makes it"
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        key = await admin.security.create_key("ann")
        async with client(node.port, key.api_key) as ann:
            with pytest.raises(AccessError):
                await ann.delete_topic("t")
            await settled(lambda: has_topic(node), "the topic was not made")
            with pytest.raises(AccessError):
                await lines(ann, "t")
        found = await lines(admin, "topic_describe")
        assert [(line["event"], line["kind"], line["principal"]) for line in found][:5] == [
            ("asked", "topic_create", "admin"),
            ("done", "topic_create", "admin"),
            ("asked", "security_change", "admin"),
            ("done", "security_change", "admin"),
            ("refused", "topic_describe", "ann"),
        ]
        assert [line["number"] for line in found] == list(range(1, len(found) + 1))
        assert key.api_key not in json.dumps(found)
        for change in (admin.delete_topic(AUDIT_TOPIC), admin.producer(AUDIT_TOPIC).send(b"forged")):
            with pytest.raises(TidelogError):
                await change
        config = node.broker.topics.named(AUDIT_TOPIC).config
        assert (config.retention_ms, config.retention_bytes) == (30 * 86_400_000, 1 << 30)
        assert config.cleanup == pb.DELETE, "no line gives way to a later one of the same key"
        with pytest.raises(TidelogError):
            await admin.alter_topic(AUDIT_TOPIC, retention_ms=1)
        end = node.broker.partitions.of_topic(node.broker.topics.named(AUDIT_TOPIC).topic_id)[0].log.end_offset
        # The refused lookup of the publish is followed by the refused publish, whose permission the error names.
    assert end <= len(found) + 2 * 2 + 1, "of two acts, and nothing of its own writes"


async def test_audit_topic_collects_all_nodes_and_is_empty_without_auth(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    for name in founded.nodes:
        async with client(founded.ports[name], ADMIN) as admin:
            await admin.create_topic(f"of-{name}")
    async with client(founded.ports["a"], ADMIN) as admin:
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            while {line["node"] for line in found} != set(founded.nodes):
                await settled(lambda: has_topic(founded.nodes["a"]), "the topic was not made")
                topic = founded.nodes["a"].broker.topics.named(AUDIT_TOPIC)
                assert topic.config.replication_factor == 3
                offsets = await admin.list_offsets(AUDIT_TOPIC, "latest")
                fetched = await admin.fetch(AUDIT_TOPIC, 0, 0) if offsets[0].offset else None
                found = [json.loads(value) for value in _values(fetched)]
                await asyncio.sleep(0.05)


def _values(fetched: Any) -> list[bytes]:
    return [] if fetched is None else [value for batch in fetched.batches for value in batch.values()]


async def test_full_audit_queue_drops_lines(stand: Stand, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        node.broker.audit.unknown("of a test", "before")
        await settled(lambda: has_topic(node), "the topic was not made")
        await lines(admin, "before")
        monkeypatch.setattr(audit_topic, "QUEUE_BYTES_MAX", 1_000)
        stand.disk.hold("sync", AUDIT_TOPIC)
        for number in range(15):
            node.broker.audit.unknown("of a test", f"client {number}")
        dropped = counted(node, "tidelog_audit_dropped_total") or 0
        assert 5 <= dropped < 15
        await stand.disk.held_up()
        assert await admin.topics() == [], "no request waits for it"
        stand.disk.heal()
        found = await lines(admin, f"client {15 - int(dropped) - 1}")
        assert found[-1]["client_id"] == f"client {15 - int(dropped) - 1}"


async def test_log_says_why_audit_lines_are_dropped(
    stand: Stand, key_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    tried = asyncio.Event()

    async def fail(*_request: object) -> None:
        tried.set()
        raise ProtocolError(pb.DISK_FULL, "no space for 100 bytes")

    monkeypatch.setattr(audit_topic, "ask_owner", fail)
    monkeypatch.setattr(audit_topic, "QUEUE_BYTES_MAX", 1_000)
    node.broker.audit.unknown("of a test", "before")
    await asyncio.wait_for(tried.wait(), 10)
    for number in range(15):
        node.broker.audit.unknown("of a test", f"client {number}")
    (said,) = [each.getMessage() for each in caplog.records if each.name == audit_topic.__name__]
    assert said.endswith("the queue of 1,000 bytes is full, because writing to __audit fails: no space for 100 bytes")


async def test_lines_of_a_flood_share_batches(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    session = Session(node.broker.security.registry.permissions, "ann")
    async with client(node.port, ADMIN) as admin:
        began_s = time.monotonic()
        for _ in range(200):
            node.broker.audit.begin("cluster_change", session, pb.Envelope(cluster_change=pb.ClusterChange()))
            await asyncio.sleep(0.002)
        node.broker.audit.unknown("of a test", "the last one")
        found = await lines(admin, "the last one")
        took_s = time.monotonic() - began_s
        assert [line["number"] for line in found] == list(range(1, len(found) + 1))
        fetched = await admin.fetch(AUDIT_TOPIC, 0, 0)
        assert len(fetched.batches) <= took_s / audit_topic.PAUSE_S + 2


async def test_audit_topic_can_be_disabled(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file, audit_topic=False)
    async with client(node.port, ADMIN) as admin:
        await admin.create_topic("t")
        await admin.create_topic("u")
    assert not has_topic(node)
