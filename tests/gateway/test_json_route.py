"""Bodies of routes that take JSON are bounded in values and members before the framework makes objects of them."""

from __future__ import annotations

import json

import httpx
import pytest

from tidelog_gateway.bodies import MEMBERS_MAX, VALUES_MAX

HEAD = {"Content-Type": "application/json"}


async def test_a_body_of_too_many_values_is_refused(api: httpx.AsyncClient) -> None:
    body = b'{"offsets":[' + b"{}," * VALUES_MAX + b"{}]}"
    answer = await api.put("/v1/groups/g/offsets", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert str(VALUES_MAX) in answer.json()["detail"]


async def test_only_the_first_wrong_element_of_a_list_is_reported(api: httpx.AsyncClient) -> None:
    answer = await api.put("/v1/groups/g/offsets", json={"offsets": [{"topic": "t"}] * 3_000})
    assert answer.status_code == 422
    assert {error["pointer"].split("/")[2] for error in answer.json()["errors"]} == {"0"}


@pytest.mark.parametrize("nested", [False, True])
async def test_an_object_of_too_many_members_is_refused(api: httpx.AsyncClient, nested: bool) -> None:
    members = {f"m{number}": 0 for number in range(MEMBERS_MAX + 1)}
    body = json.dumps({"offsets": [members]} if nested else members)
    answer = await api.put("/v1/groups/g/offsets", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 1
