"""Groups over HTTP: a real node, a real gateway, and members of the native client."""

from __future__ import annotations

import asyncio
import secrets

import httpx
import pytest
from tests.gateway.test_app import problem

from tidelog import Client, Group

pytestmark = pytest.mark.e2e


@pytest.fixture
async def topic(http: httpx.AsyncClient) -> str:
    name = f"t-{secrets.token_hex(4)}"
    assert (await http.post("/v1/topics", json={"name": name, "partitions": 2})).status_code == 201
    records = [{"value": str(number), "partition": number % 2} for number in range(10)]
    assert (await http.post(f"/v1/topics/{name}/records", json={"records": records})).status_code == 200
    return name


async def test_a_group_from_its_first_member_to_its_deletion(
    http: httpx.AsyncClient, node_address: str, topic: str
) -> None:
    name = f"g-{topic}"
    path = f"/v1/groups/{name}"
    problem(await http.get(path), 404, "unknown_group")
    group = Group(name, commit="processed", instance_id="one")
    async with Client(node_address, client_id="reader") as client, client.consumer(topic, group=group) as consumer:
        seen = 0
        async with asyncio.timeout(20):
            while seen < 10:
                seen += len(await consumer.poll(10))
        told = (await http.get(path)).json()
        assert (told["state"], told["members"], told["assignor"]) == ("stable", 1, "sticky")
        (member,) = told["member_list"]
        assert (member["client_id"], member["instance_id"]) == ("reader", "one")
        assert member["reads"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        positions = {"offsets": [{"topic": topic, "partition": 0, "next_offset": 1}]}
        problem(await http.put(f"{path}/offsets", json=positions), 409, "group_not_empty")
        problem(await http.delete(path), 409, "group_not_empty")
        problem(await http.post(f"{path}/offsets:reset", json={"to": "earliest"}), 409, "group_not_empty")
    lag = (await http.get(f"{path}/lag")).json()
    assert (lag["lag"], [each["next_offset"] for each in lag["partitions"]]) == (0, [5, 5])


async def test_offsets_are_reset_and_groups_are_deleted(http: httpx.AsyncClient, topic: str) -> None:
    name = f"g-{topic}"
    path = f"/v1/groups/{name}"
    positions = {"offsets": [{"topic": topic, "partition": 0, "next_offset": 5}]}
    assert (await http.put(f"{path}/offsets", json=positions)).status_code == 200
    for body in ({}, {"to": "earliest", "offset": 1}, {"to": "middle"}, {"offset": -1}, {"timestamp": "yesterday"}):
        problem(await http.post(f"{path}/offsets:reset", json=body), 422, "invalid_request")
    dry = await http.post(f"{path}/offsets:reset", json={"offset": 2, "topic": topic, "dry_run": True})
    assert [each["next_offset"] for each in dry.json()["partitions"]] == [2, 2]
    assert (await http.get(f"{path}/lag")).json()["lag"] == 5
    moved = await http.post(f"{path}/offsets:reset", json={"to": "earliest"})
    assert moved.json()["lag"] == 10
    for at, places in (("2000-01-01T00:00:00Z", [0, 0]), ("9999-01-01T00:00:00Z", [5, 5])):
        by_time = await http.post(f"{path}/offsets:reset", json={"timestamp": at, "dry_run": True})
        assert [each["next_offset"] for each in by_time.json()["partitions"]] == places
    assert (await http.get(f"{path}/lag", params={"topic": topic})).json()["lag"] == 10
    names: list[str] = []
    cursor: str | None = None
    while cursor is not None or not names:
        page = (await http.get("/v1/groups", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))).json()
        names += [each["name"] for each in page["groups"]]
        cursor = page["next_cursor"]
    assert name in names
    assert names == sorted(set(names))
    problem(await http.get("/v1/groups", params={"cursor": "!"}), 422, "invalid_request")
    assert (await http.delete(path)).status_code == 204
    problem(await http.delete(path), 404, "unknown_group")
    assert (await http.get(f"{path}/offsets")).json()["offsets"] == []
    assert (await http.get(f"{path}/lag")).json() == {"group": name, "lag": 0, "partitions": []}, "see docs/groups.md"
