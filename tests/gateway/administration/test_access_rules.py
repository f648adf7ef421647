"""API keys and rules over HTTP, with the caller's permissions."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.secured import bearer, secured

from tidelog.security import AccessRule
from tidelog_proto.auth.api_key import parse_key

MANAGES = (("cluster",), "cluster", "")
RULE = {"principal": "new", "operations": ["describe"], "resource": "topic", "name": "t"}


async def test_a_key_is_created_used_listed_and_revoked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        head = bearer(await gate.key_of("ops", MANAGES))
        ends_ms = int(time.time() * 1000) + 3_600_000
        body = {"principal": "new", "roles": ["etl"], "expires_ms": ends_ms, "note": "of a test"}
        made = await gate.http.post("/v1/api-keys", json=body, headers=head)
        assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
        key = made.json().pop("api_key")
        secret = parse_key(key).secret
        shown = {name: value for name, value in made.json().items() if name != "api_key"}
        assert shown.items() >= body.items()
        listed = await gate.http.get("/v1/api-keys", headers=head)
        assert shown in listed.json()["api_keys"]
        assert listed.json()["next_cursor"] is None
        assert secret not in listed.text

        assert (await gate.http.get("/v1/topics/t", headers=bearer(key))).status_code == 403
        rule = await gate.http.post("/v1/rules", json=RULE, headers=head)
        assert rule.status_code == 201
        assert rule.json().items() >= RULE.items()
        assert rule.json() in (await gate.http.get("/v1/rules", headers=head)).json()["rules"]
        assert (await gate.http.get("/v1/topics/t", headers=bearer(key))).status_code == 200

        rule_path = f"/v1/rules/{rule.json()['rule_id']}"
        key_path = f"/v1/api-keys/{shown['key_id']}"
        for path in (rule_path, rule_path, key_path, key_path):
            assert (await gate.http.delete(path, headers=head)).status_code == 204, "revoking is idempotent"
        assert shown not in (await gate.http.get("/v1/api-keys", headers=head)).json()["api_keys"]
        async with asyncio.timeout(20):  # within a second or two
            while (await gate.http.get("/v1/topics/t", headers=bearer(key))).status_code != 401:
                await asyncio.wait_for(gate.admin.topic("t"), 10)
    assert secret not in caplog.text
    assert any('"through": "gate"' in line and '"ops"' in line for line in caplog.messages), "the caller is named"


async def test_the_gateways_own_permissions_do_not_help_a_caller(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.security.grant(AccessRule("gate", ("cluster",), "cluster"))
        head = bearer(await gate.key_of("ann", (("describe",), "cluster", "")))
        for path, body in (("/v1/api-keys", {"principal": "ann"}), ("/v1/rules", RULE)):
            for method in ("POST", "GET"):
                answer = await gate.http.request(method, path, json=body, headers=head)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)
            assert (await gate.http.delete(f"{path}/x", headers=head)).status_code == 403
        foreign = {"Origin": "https://evil.example"}
        manager = bearer(await gate.key_of("ops", MANAGES))
        refused = await gate.http.post("/v1/api-keys", json={"principal": "ann"}, headers=manager | foreign)
        assert "allowed_origins" in refused.json()["detail"]
        assert not [key for key in await gate.admin.security.api_keys() if key.principal == "ann"][1:]


async def test_a_gateway_without_authentication_refuses_keys_and_rules(open_api: OpenApi) -> None:
    async with open_api() as api:
        for method, path, body in (
            ("POST", "/v1/api-keys", {"principal": "ann"}),
            ("GET", "/v1/api-keys", None),
            ("DELETE", "/v1/api-keys/x", None),
            ("POST", "/v1/rules", RULE),
            ("GET", "/v1/rules", None),
            ("DELETE", "/v1/rules/x", None),
        ):
            answer = await api.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)
            assert "auth = none" in answer.json()["detail"]


async def test_malformed_keys_and_rules_are_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        head = bearer(await gate.key_of("ops", MANAGES))
        for path, body in (
            ("/v1/api-keys", {}),
            ("/v1/api-keys", {"principal": ""}),
            ("/v1/api-keys", {"principal": "role:x"}),
            ("/v1/api-keys", {"principal": "a", "expires_ms": 1}),
            ("/v1/api-keys", {"principal": "a", "api_key": "mine"}),
            ("/v1/api-keys", {"principal": "a", "roles": ["r"] * 65}),
            ("/v1/rules", RULE | {"operations": []}),
            ("/v1/rules", RULE | {"operations": ["read"]}),
            ("/v1/rules", RULE | {"resource": "cluster"}),
            ("/v1/rules", RULE | {"rule_id": "mine"}),
        ):
            answer = await gate.http.post(path, json=body, headers=head)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), body
        for path in ("/v1/api-keys/none", "/v1/rules/none"):
            answer = await gate.http.delete(path, headers=head)
            assert (answer.status_code, "does not exist" in answer.json()["detail"]) == (422, True)
        for path in ("/v1/api-keys?cursor=!", "/v1/rules?cursor=!"):
            assert (await gate.http.get(path, headers=head)).status_code == 422
