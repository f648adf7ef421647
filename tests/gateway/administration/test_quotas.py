from __future__ import annotations

from pathlib import Path

from tests.broker.keyed import ADMIN
from tests.gateway.secured import bearer, secured

from tidelog.security import AccessRule
from tidelog.security.quotas import Quota


async def test_quotas_are_set_listed_used_and_removed(tmp_path: Path) -> None:
    async with secured(tmp_path) as its:
        admin = bearer(ADMIN)
        network = "/v1/quotas/address:10.0.0.0%2F8"
        made = await its.http.put(network, json={"connections": 5, "requests": "unlimited"}, headers=admin)
        assert made.status_code == 200, made.text
        unset = ("produce_bytes", "consume_bytes", "in_flight_bytes", "topics", "partitions", "groups")
        expected = {"subject": "address:10.0.0.0/8", "connections": 5, "requests": "unlimited"}
        assert made.json() == expected | dict.fromkeys(unset)
        assert (await its.http.get("/v1/quotas", headers=admin)).json() == {"quotas": [made.json()]}
        assert (await its.admin.security.quotas())["address:10.0.0.0/8"] == Quota(connections=5, requests=float("inf"))

        ada = bearer(await its.key_of("ada", (("all",), "topic", "t")))
        await its.http.put("/v1/quotas/ada", json={"connections": 50}, headers=admin)
        await its.http.get("/v1/topics", headers=ada)
        usages = (await its.http.get("/v1/quotas:usage", headers=admin)).json()["usages"]
        assert {usage["caller"] for usage in usages} == {"ada"}
        assert (await its.http.get("/v1/quotas", headers=ada)).status_code == 403
        assert (await its.http.put("/v1/quotas/ada", json={"connections": 9}, headers=ada)).status_code == 403

        assert (await its.http.delete(network, headers=admin)).status_code == 204
        gone = await its.http.delete(network, headers=admin)
        assert (gone.status_code, "10.0.0.0/8" in gone.json()["detail"]) == (422, True)


async def test_invalid_quotas_are_refused_with_the_value(tmp_path: Path) -> None:
    async with secured(tmp_path) as its:
        wrong = await its.http.put("/v1/quotas/ada", json={"connections": "many"}, headers=bearer(ADMIN))
        (fault,) = wrong.json()["errors"]
        assert fault == {
            "pointer": "/connections",
            "detail": 'must be a whole number from 0 to 9223372036854775807, "unlimited" or null, got "many"',
        }
        for body, says in (
            ({}, "set at least one of"),
            ({"connections": -1}, "-1"),
            ({"connections": "many"}, "many"),
            ({"connexions": 1}, "/connexions"),
            ({"produce_bytes": 1}, "4"),
            ({"requests": 1.5}, "1.5"),
        ):
            answer = await its.http.put("/v1/quotas/ada", json=body, headers=bearer(ADMIN))
            assert answer.status_code == 422, answer.text
            assert says in answer.text
        assert await its.admin.security.quotas() == {}


async def test_a_test_names_the_rule_that_decides(tmp_path: Path) -> None:
    async with secured(tmp_path) as its:
        rule = await its.admin.security.grant(AccessRule("eve", ("consume",), "topic", "web-", prefix=True))
        asked = {"principal": "eve", "operation": "consume", "resource": "topic", "name": "web-a"}
        answer = (await its.http.post("/v1/rules:test", json=asked, headers=bearer(ADMIN))).json()
        assert answer["allowed"] is True
        assert rule.rule_id in answer["because"]
        denied = await its.http.post("/v1/rules:test", json=asked | {"operation": "delete"}, headers=bearer(ADMIN))
        assert denied.json()["allowed"] is False

        eve = bearer(await its.key_of("eve"))
        own = await its.http.post("/v1/rules:test", json=asked | {"principal": ""}, headers=eve)
        assert own.json()["allowed"] is True
        other = await its.http.post("/v1/rules:test", json=asked | {"principal": "ada"}, headers=eve)
        assert other.status_code == 403
        everything = await its.http.post("/v1/rules:test", json=asked | {"operation": "all"}, headers=bearer(ADMIN))
        assert everything.status_code == 422
