"""JSON bodies are limited in values and members before the framework parses them."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tidelog_gateway.bodies.json_body import MEMBERS_MAX, VALUES_MAX
from tidelog_proto.flow.fair_scheduler import Turns

HEAD = {"Content-Type": "application/json"}


async def test_a_body_of_too_many_values_is_refused(api: httpx.AsyncClient) -> None:
    body = b'{"offsets":[' + b"{}," * VALUES_MAX + b"{}]}"
    answer = await api.put("/v1/groups/g/offsets", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert str(VALUES_MAX) in answer.json()["detail"]


async def test_a_large_body_waits_for_its_turn_before_it_is_refused(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, next_slice = list[object](), Turns.next_slice

    async def counted(self: Turns, reader: object, caller: object = None, cost_s: float = 0.0) -> None:
        turns.append(caller)
        await next_slice(self, reader, caller, cost_s)

    monkeypatch.setattr(Turns, "next_slice", counted)
    body = b'{"offsets":[' + b"{}," * VALUES_MAX + b"{}]}"
    answers = await asyncio.gather(*(api.put("/v1/groups/g/offsets", content=body, headers=HEAD) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [422] * 4
    assert len(turns) >= 4


async def test_the_first_faults_of_a_list_are_reported(api: httpx.AsyncClient) -> None:
    answer = await api.put("/v1/groups/g/offsets", json={"offsets": [{"topic": "t"}] * 3_000})
    assert answer.status_code == 422
    assert {int(error["pointer"].split("/")[2]) for error in answer.json()["errors"]} == set(range(50)), "two each"


@pytest.mark.parametrize("nested", [False, True])
async def test_an_object_of_too_many_members_is_refused(api: httpx.AsyncClient, nested: bool) -> None:
    members = {f"m{number}": 0 for number in range(MEMBERS_MAX + 1)}
    body = json.dumps({"offsets": [members]} if nested else members)
    answer = await api.put("/v1/groups/g/offsets", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 1


async def test_an_object_with_the_most_members_reaches_the_route(api: httpx.AsyncClient) -> None:
    members = {f"m{number}": 0 for number in range(MEMBERS_MAX)}
    answer = await api.put("/v1/groups/g/offsets", content=json.dumps(members), headers=HEAD)
    assert answer.status_code == 422
    assert "members" not in answer.json()["detail"]


async def test_another_media_type_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.put("/v1/groups/g/offsets", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"offsets": ["\xff"]}', "the body is not UTF-8; send JSON in UTF-8"),
        ('{"offsets": []}'.encode("utf-16-le"), "the body has zero bytes, as UTF-16 does; send JSON in UTF-8"),
        ('{"offsets": []}'.encode("utf-16"), "the body is not UTF-8; send JSON in UTF-8"),
    ],
)
async def test_another_encoding_than_utf_8_is_refused(api: httpx.AsyncClient, body: bytes, detail: str) -> None:
    answer = await api.put("/v1/groups/g/offsets", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["detail"] == detail


async def test_a_body_that_nests_too_deeply_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.put("/v1/groups/g/offsets", content=b'{"offsets":' + b"[" * 15_000, headers=HEAD)
    assert answer.status_code == 422
