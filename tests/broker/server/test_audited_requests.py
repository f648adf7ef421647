"""Audit lines: origin, caller, operation, resource and outcome."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled
from tests.gateway.secured import bearer, secured

from tidelog import Client
from tidelog.errors import ForbiddenError, TidelogError, UnauthenticatedError
from tidelog.security import AccessRule
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.audit_log import About, AuditLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

HERE = "127.0.0.1"
PAGE = Path(__file__).parents[3] / "docs" / "permissions.md"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level("INFO", "tidelog.audit")
    return Lines(caplog)


class Lines:
    """Lines of the audit log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, *events: str, **fields: object) -> list[dict[str, Any]]:
        """Return the lines of some events that have these fields."""
        said = [json.loads(one.getMessage()) for one in self._caplog.records if one.name == "tidelog.audit"]
        return [line for line in said if line["event"] in events and fields.items() <= line.items()]


@pytest.fixture
async def admin(stand: Stand, key_file: Path) -> AsyncIterator[Client]:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        yield admin


def test_audit_page_lists_each_event_and_field() -> None:
    audit, lines = AuditLog(), list[dict[str, object]]()
    audit.also = lines.append
    session, everything = Session(Permissions(), "ann"), About("a", "b", "c", "d", "e")
    act = audit.begin("topic_delete", session, pb.Envelope(topic_delete=pb.TopicDelete(name="t")), everything)
    for error in (None, pb.Error(message="no")):
        audit.answered(act, "topic_delete", session, everything, error)
    audit.refused("topic_delete", session, ProtocolError(pb.FORBIDDEN, "no"), everything)
    audit.unknown("no key", "client", everything)
    (section,) = re.findall(r"## The audit log\n(.*)", PAGE.read_text(), re.DOTALL)
    named = set(re.findall(r"`([\w ]+)`", section))
    assert {line["event"] for line in lines} <= named
    assert {field for line in lines for field in line} <= named


async def test_audit_lines_contain_origin_operation_resource_and_outcome(admin: Client, lines: Lines) -> None:
    await admin.create_topic("t")
    await admin.producer("t").send(b"x")
    await admin.commit("g", "t", {0: 0})
    with pytest.raises(TidelogError):
        await admin.create_topic("t")
    await admin.alter_topic("t", retention_ms=1 << 40)
    await admin.delete_records("t", 1)
    await admin.groups.delete("g")
    rule = await admin.security.grant(AccessRule("ann", ("consume",), "topic", "t"))
    await admin.security.revoke(rule.rule_id)
    await admin.delete_topic("t")
    acts = [
        ("topic_create", "create", "topic:t", "done"),
        ("topic_create", "create", "topic:t", "failed"),
        ("topic_alter", "alter", "topic:t", "done"),
        ("delete_records", "delete", "topic:t", "done"),
        ("group_delete", "delete", "group:g", "done"),
        ("security_change", "cluster", "cluster", "done"),
        ("security_change", "cluster", "cluster", "done"),
        ("topic_delete", "delete", "topic:t", "done"),
    ]
    began, ended = lines.of("asked"), lines.of("done", "failed")
    assert [(one["kind"], one["operation"], one["resource"], one["event"]) for one in ended] == acts
    assert [line["act"] for line in began] == [line["act"] for line in ended] == list(range(1, len(acts) + 1))
    for line in (*began, *ended):
        assert (line["principal"], line["address"]) == ("admin", HERE)
        assert not {"through", "handed_on_by"} & line.keys()
        assert ("why" in line) is (line["event"] == "failed")
    assert "'t'" in lines.of("failed")[0]["why"]


async def test_audited_refusal_contains_origin_operation_and_resource(
    stand: Stand, admin: Client, lines: Lines
) -> None:
    await admin.create_topic("t")
    key = await admin.security.create_key("ann")
    async with client(stand.node.port, key.api_key) as ann:
        for doing in (ann.delete_topic("t"), ann.committed("g"), ann.security.users(), ann.fetch("t", 0, 0)):
            with pytest.raises(ForbiddenError):
                await doing
    refused = lines.of("refused")
    assert all((line["principal"], line["address"]) == ("ann", HERE) for line in refused)
    said = {(line["operation"], line["resource"]) for line in refused}
    assert {("describe", "topic:t"), ("describe", "group:g"), ("cluster", "cluster")} <= said
    with pytest.raises(UnauthenticatedError):
        async with client(stand.node.port, ADMIN[:-1] + "t") as nobody:
            await nobody.connect()
    (unknown,) = lines.of("not authenticated")
    assert unknown["address"] == HERE


async def test_unanswered_operation_is_audited_as_failed_at_a_stop(stand: Stand, admin: Client, lines: Lines) -> None:
    await admin.create_topic("t")
    topic = stand.node.broker.topics.named("t")
    peer = await Peer.connect(stand.node.port)
    stand.peers.append(peer)
    await peer.greet(api_key=ADMIN)
    stand.disk.hold("sync")
    peer.post(topic_alter=pb.TopicAlter(name=topic.name, retention_ms=1 << 40))
    await settled(lambda: bool(lines.of("asked", kind="topic_alter")), "nobody began")
    assert not lines.of("done", "failed", kind="topic_alter"), "it is under way"
    stopping = asyncio.create_task(stand.stop())
    stand.disk.heal()
    await stopping
    assert len(lines.of("done", "failed", kind="topic_alter")) == 1


async def test_forwarded_refusal_names_the_forwarding_node(founded: Founded, key_file: Path, lines: Lines) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    await founded.settled()
    owner = founded.owner(META_KEY, "a")
    asked = next(node for name, node in founded.nodes.items() if name != owner)
    envelope = pb.Envelope(topic_delete=pb.TopicDelete(name="t"), caller=pb.Caller(principal="nobody"))
    with pytest.raises(ProtocolError):
        await asked.broker.cluster.request(owner, envelope, timeout_s=20)
    (refused,) = lines.of("refused")
    assert (refused["handed_on_by"], refused["resource"]) == (asked.node_id, "topic:t")
    assert "address" not in refused, "it is not the caller's"


async def test_audit_line_names_gateway_and_caller(tmp_path: Path, lines: Lines) -> None:
    async with secured(tmp_path) as gate:
        key = await gate.key_of("ann", (("create",), "topic", "made"))
        assert (await gate.http.post("/v1/topics", json={"name": "made"}, headers=bearer(key))).status_code == 201
        assert (await gate.http.delete("/v1/topics/made", headers=bearer(key))).status_code == 403
        assert (await gate.http.get("/v1/topics", headers=bearer(ADMIN[:-1] + "t"))).status_code == 401
    (done,) = lines.of("done", principal="ann")
    (refused,) = lines.of("refused", principal="ann")
    (unknown,) = lines.of("not authenticated")
    assert [(line["through"], line["address"]) for line in (done, refused, unknown)] == [("gate", HERE)] * 3
