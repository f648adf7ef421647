"""Two callers through one gateway: each has the permissions of its own key, and they end with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.broker.keyed import ADMIN
from tests.broker.stand import settled
from tests.gateway.secured import Secured, bearer, secured
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.callers.caller_cache import CallerCache

OWN = [(("produce", "consume", "describe"), "topic", "ann-1"), (("group", "describe"), "group", "ann-g")]
RECORDS = {"records": [{"value": "x", "partition": 0}]}


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(20):
        return json.loads(await socket.recv())


async def until(socket: ClientConnection, kind: str) -> Any:
    while kind not in (message := await receive(socket)):
        pass
    return message


async def code_of_close(socket: ClientConnection) -> tuple[int | None, str | None]:
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionClosed):
            async for _ in socket:
                pass
        await socket.wait_closed()
    return socket.close_code, socket.close_reason


def sub(topic: str, **more: Any) -> str:
    credit = {"records": 100}
    return json.dumps({"id": 1, "sub": {"sid": 1, "topic": topic, "from": "earliest", "credit": credit, **more}})


async def topics_of(gate: Secured, key: str) -> list[str]:
    answer = await gate.http.get("/v1/topics", headers=bearer(key))
    return [topic["name"] for topic in answer.json()["topics"]]


async def test_each_caller_has_its_own_permissions(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        for name in ("ann-1", "bob-1"):
            await gate.admin.create_topic(name)
        ann = await gate.key_of("ann", *OWN)
        bob = await gate.key_of("bob", (("produce",), "topic", "bob-1"), (("consume",), "topic", "ann-1"))

        async def publish(key: str, topic: str) -> int:
            answer = await gate.http.post(f"/v1/topics/{topic}/records", json=RECORDS, headers=bearer(key))
            return answer.status_code

        turns = [(ann, "ann-1", 200), (bob, "ann-1", 403), (ann, "bob-1", 403), (bob, "bob-1", 200)]
        codes = await asyncio.gather(*(publish(key, topic) for key, topic, _ in turns * 10))
        assert codes == [code for _, _, code in turns * 10], "concurrent publishers do not share permissions"
        ends = {topic.name: topic.partitions[0].high_watermark for topic in await gate.admin.topics()}
        described = {name: (await gate.admin.topic(name)).partitions[0].high_watermark for name in ends}
        assert described == {"ann-1": 10, "bob-1": 10}
        assert await topics_of(gate, ann) == ["ann-1"]
        assert await topics_of(gate, bob) == ["ann-1", "bob-1"]
        assert await topics_of(gate, ADMIN) == ["ann-1", "bob-1"]
        for topic in ("bob-1", "none"):  # the caller must not learn whether it exists
            answer = await gate.http.get(f"/v1/topics/{topic}", headers=bearer(ann))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        async with gate.ws(ann) as socket:
            await socket.send(sub("ann-1", group="ann-g", member=True))
            assert (await receive(socket))["ok"]
            assert (await until(socket, "batch"))["batch"]["next_offset"] > 0
            await socket.send(json.dumps({"id": 2, "commit": {"sid": 1, "offsets": {"0": 1}}}))
            assert (await until(socket, "id"))["ok"]["offsets"] == {"0": 1}
            for group, topic, is_his in (
                ("ann-g", "ann-1", True),
                ("bob-g", "ann-1", False),
                ("ann-g", "bob-1", False),
            ):
                await socket.send(json.dumps({"id": 3, "committed": {"group": group, "topic": topic}}))
                answer = await until(socket, "id")
                assert [each["next_offset"] for each in answer["ok"]["offsets"]] == [1] if is_his else "error" in answer
                assert is_his or answer["error"]["status"] == 403, (group, topic)
            await socket.send(sub("bob-1").replace('"sid": 1', '"sid": 2'))
            assert (await until(socket, "error"))["error"]["status"] == 403
        async with gate.ws(bob) as socket:
            await socket.send(sub("ann-1", group="ann-g", member=True))
            answer = await until(socket, "end") if "ok" in (first := await receive(socket)) else first
            assert (answer.get("end") or answer)["error"]["status"] == 403, "the caller may not join that group"
            await socket.send(sub("ann-1").replace('"sid": 1', '"sid": 3'))
            assert (await until(socket, "batch"))["batch"]["records"]


async def test_everything_opened_with_a_revoked_key_ends_within_a_second(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("ann-1")
        ann, other = await gate.key_of("ann", *OWN), await gate.key_of("other", (("consume",), "topic", "ann-1"))
        async with gate.ws(ann) as socket, gate.ws(other) as others, gate.ws(ann) as idle:
            for each in (socket, others):
                await each.send(sub("ann-1"))
                assert (await receive(each))["ok"]
            await gate.http.post("/v1/topics/ann-1/records", json=RECORDS, headers=bearer(ann))
            for each in (socket, others):
                await until(each, "batch")
            path = "/v1/topics/ann-1/partitions/0/records?offset=1&wait_ms=20000"
            waiting = asyncio.create_task(gate.http.get(path, headers=bearer(ann)))
            await asyncio.sleep(0.1)
            began_s = time.monotonic()
            await gate.revoke("ann")
            for each in (socket, idle):
                code, reason = await code_of_close(each)
                assert (code, "revoked" in str(reason)) == (4401, True)
                assert str(reason).startswith("connect with other credentials, and resume: ")
            assert time.monotonic() - began_s < 10, "not only when a ticket is renewed"
            assert (await waiting).status_code == 401
            assert time.monotonic() - began_s < 10, "even without a record"
            await gate.admin.producer("ann-1").send(b"late")
            answer = await gate.http.post("/v1/topics/ann-1/records", json=RECORDS, headers=bearer(ann))
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert (await until(others, "batch"))["batch"]["records"][0]["value"] == "late"


async def test_expired_credentials_close_a_websocket(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("ann-1")
        ann = await gate.key_of("ann", *OWN, expires_us=time.time_ns() // 1000 + 3_000_000)
        async with gate.ws(ann) as idle, gate.ws(ann) as reading:
            await reading.send(sub("ann-1"))
            assert (await receive(reading))["ok"]
            for socket in (idle, reading):
                code, reason = await code_of_close(socket)
                assert (code, "expired" in str(reason)) == (4401, True)
        answer = await gate.http.get("/v1/topics", headers=bearer(ann))
        assert (answer.status_code, answer.json()["code"]) == (401, "credentials_expired")


async def test_a_removed_rule_ends_only_the_subscription_that_needs_it(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("ann-1")
        ann = await gate.key_of("ann", *OWN)
        async with gate.ws(ann) as socket:
            await socket.send(sub("ann-1"))
            assert (await receive(socket))["ok"]
            (rule,) = [each for each in await gate.admin.security.rules() if each.name == "ann-1"]
            await gate.admin.security.revoke(rule.rule_id)
            assert (await until(socket, "end"))["end"]["error"]["code"] == "forbidden"
            await socket.send(json.dumps({"id": 2, "pub": {"topic": "ann-1", "records": [{"value": "x"}]}}))
            assert (await until(socket, "error"))["error"]["status"] == 403


async def test_tickets_that_nodes_refuse_are_renewed_transparently(tmp_path: Path) -> None:
    """As after a restart of a single node, or a change of the cluster's secret."""
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("ann-1")
        ann = await gate.key_of("ann", *OWN)
        async with gate.ws(ann) as socket:
            await socket.send(sub("ann-1"))
            assert (await receive(socket))["ok"]
            for number in range(5):
                gate.node.broker.security.tickets.use([b"secret %d" % number], b"c" * 16)
                answer = await gate.http.post("/v1/topics/ann-1/records", json=RECORDS, headers=bearer(ann))
                assert answer.json()["results"] == [{"partition": 0, "offset": number}]
                assert (await until(socket, "batch"))["batch"]["next_offset"] == number + 1
                assert await topics_of(gate, ann) == ["ann-1"]


async def test_a_gateway_without_impersonate_refuses_all_and_logs_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(tmp_path) as gate:
        ann, known = await gate.key_of("ann", *OWN), await gate.key_of("known", *OWN)
        assert await topics_of(gate, known) == []
        answer = await gate.http.get("/v1/topics/t", headers=bearer(known))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (
            "the caller has no permission, the gateway has"
        )
        (rule,) = [each for each in await gate.admin.security.rules() if "impersonate" in each.operations]
        await gate.admin.security.revoke(rule.rule_id)
        for request in (
            gate.http.get("/v1/topics", headers=bearer(known)),
            gate.http.post("/v1/topics/ann-1/records", json=RECORDS, headers=bearer(known)),
        ):
            answer = await request
            assert (answer.status_code, answer.json()["code"]) == (503, "gateway_refused"), (
                "it is not the caller's fault"
            )
            assert "Retry-After" in answer.headers
        answer = await gate.http.get("/v1/topics", headers=bearer(ann))
        assert (answer.status_code, answer.json()["code"]) == (503, "gateway_refused")
        assert "an administrator can grant it with: tidelog acl grant gate impersonate cluster" in caplog.text
        async with gate.ws() as socket:
            await socket.send(json.dumps({"id": 1, "auth": {"token": ann}}))
            assert (await receive(socket))["error"]["code"] == "gateway_refused"
            assert (await code_of_close(socket))[0] == 1013


async def test_a_dropped_caller_leaves_nothing_and_can_return(tmp_path: Path) -> None:
    async with secured(tmp_path, callers_max=16) as gate:
        await gate.admin.create_topic("ann-1")
        ann = await gate.key_of("ann", *OWN)
        for _ in range(2):
            answer = await gate.http.post("/v1/topics/ann-1/records", json=RECORDS, headers=bearer(ann))
            assert answer.status_code == 200
            for number in range(16):
                assert await topics_of(gate, await gate.key_of(f"u{number}")) == []
        callers: CallerCache = gate.app.state.callers
        assert len(callers) == 16
        answer = await gate.http.get("/v1/topics/ann-1/partitions/0/records?offset=0", headers=bearer(ann))
        assert len(answer.json()["records"]) == 2


async def test_the_description_lists_the_security_schemes(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        described = (await gate.http.get("/openapi.json")).json()
        assert described["security"] == [{"bearer": []}, {"basic": []}], "either scheme"
        schemes = described["components"]["securitySchemes"]
        assert {name: scheme["scheme"] for name, scheme in schemes.items()} == {"bearer": "bearer", "basic": "basic"}
        assert described["paths"]["/livez"]["get"]["security"] == []
        assert "security" not in described["paths"]["/v1/topics"]["get"]


async def test_names_cannot_inject_lines_into_logs_or_heads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with secured(tmp_path) as gate:
        ann = await gate.key_of("ann", *OWN)
        for path in ("/v1/topics/a%0d%0aX-Evil:%201", "/v1/groups/g%0aevil", "/v1/groups/%1b%5b2Jg"):
            answer = await gate.http.get(path, headers=bearer(ann) | {"X-Request-Id": "mine"})
            assert answer.status_code in {403, 422}
            assert "x-evil" not in answer.headers
            assert answer.headers["X-Request-Id"] == answer.json()["request_id"] != "mine"
        await settled(lambda: bool(caplog.messages), "nothing was logged")
        assert not [line for line in caplog.messages if "\nevil" in line or "\x1b" in line]
        assert not [line for line in caplog.messages if ann in line or ADMIN in line]


def test_the_credentials_of_a_caller_are_private() -> None:
    assert "credentials" not in {name for name in vars(AuthenticatedCaller) if not name.startswith("_")}
