"""The first faults of a list are reported, however many there are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

PATH = "/v1/topics/t/records"


@pytest.fixture
async def topic(log: FakeLog) -> None:
    log.logs["t"] = [[]]


async def errors_of(api: httpx.AsyncClient, method: str, path: str, body: Any) -> list[dict[str, str]]:
    answer = await api.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    found: list[dict[str, str]] = answer.json()["errors"]
    return found


@pytest.mark.usefixtures("topic")
async def test_faults_of_several_records_are_listed_with_their_values(api: httpx.AsyncClient, log: FakeLog) -> None:
    records: list[Any] = [{"value": "good"}, {}, {"value": "x", "partition": -1}, {"value": "x", "nope": 1}, 7]
    assert await errors_of(api, "POST", PATH, {"records": records, "extra": True}) == [
        {"pointer": "/extra", "detail": "is unknown; leave it out"},
        {"pointer": "/records/1/value", "detail": "is missing; add it"},
        {"pointer": "/records/2/partition", "detail": "Input should be greater than or equal to 0, got -1"},
        {"pointer": "/records/3/nope", "detail": "is unknown; leave it out"},
        {"pointer": "/records/4", "detail": "Input should be a valid dictionary, got 7"},
    ]
    assert log.appends == 0


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("size", [0, 60])
async def test_at_most_a_hundred_faults_are_listed(api: httpx.AsyncClient, size: int) -> None:
    """With long values the body is parsed in pieces, and the faults are those of several pieces."""
    records = [{"value": "x" * size} if number % 20 else {"valeu": "x" * size} for number in range(4_000)]
    found = await errors_of(api, "POST", PATH, {"records": records})
    assert len(found) == 100
    assert found[-1]["pointer"].startswith("/records/980/")


async def test_faults_of_several_positions_are_listed(open_api: OpenApi) -> None:
    offsets = [{"topic": "t", "partition": number, "next_offset": "1"} for number in range(300)]
    async with open_api() as api:
        found = await errors_of(api, "PUT", "/v1/groups/g/offsets", {"offsets": offsets})
        assert len(found) == 100
        assert found[99] == {
            "pointer": "/offsets/99/next_offset",
            "detail": 'Input should be a valid integer, got "1"',
        }
        found = await errors_of(api, "POST", "/v1/groups/g/offsets:reset", {"to": "latest", "partitions": [0, -1, "a"]})
        assert [each["pointer"] for each in found] == ["/partitions/1", "/partitions/2"]


@pytest.mark.usefixtures("topic")
async def test_a_body_of_unknown_members_only_is_refused(api: httpx.AsyncClient) -> None:
    body = {f"m{number}": 0 for number in range(1_500)}
    assert len(await errors_of(api, "POST", PATH, body)) <= 100
