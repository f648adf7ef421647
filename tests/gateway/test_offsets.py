from __future__ import annotations

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_gateway.offsets import parse_timestamp
from tidelog_gateway.problems import Problem
from tidelog_proto.batch import columns_of

GROUP = "/v1/groups/g/offsets"


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 0, columns_of([b"a", b"b", b"c"], timestamps_us=[1000, 2000, 3500]))


async def test_bounds_of_every_partition(api: httpx.AsyncClient) -> None:
    body = (await api.get("/v1/topics/t/offsets")).json()
    assert body["topic"] == "t"
    assert [(each["partition"], each["log_start_offset"], each["next_offset"]) for each in body["offsets"]] == [
        (0, 0, 3),
        (1, 0, 0),
    ]


async def test_by_time(api: httpx.AsyncClient) -> None:
    view = (await api.get("/v1/topics/t/partitions/0/offsets", params={"timestamp": 2})).json()
    assert (view["next_offset"], view["found"], view["timestamp_ms"]) == (1, True, 2)
    view = (await api.get("/v1/topics/t/partitions/0/offsets", params={"timestamp": 4})).json()
    assert (view["next_offset"], view["found"], view["timestamp_ms"]) == (3, False, None)
    problem(await api.get("/v1/topics/t/partitions/7/offsets"), 404, "unknown_partition")


async def test_commits_are_kept_and_only_move_forward(api: httpx.AsyncClient) -> None:
    items = [
        {"topic": "t", "partition": 0, "next_offset": 2, "note": "n"},
        {"topic": "t", "partition": 1, "next_offset": 0},
    ]
    put = await api.put(GROUP, json={"offsets": items})
    assert put.status_code == 200
    assert put.json() == (await api.get(GROUP)).json()
    first, second = put.json()["offsets"]
    assert first == {"topic": "t", "partition": 0, "next_offset": 2, "note": "n", "commit_timestamp_ms": 5}
    assert (second["partition"], second["note"]) == (1, "")
    older = await api.put(GROUP, json={"offsets": [{"topic": "t", "partition": 0, "next_offset": 1}]})
    assert older.json()["offsets"][0]["next_offset"] == 2
    assert (await api.get(GROUP, params={"topic": "other"})).json()["offsets"] == []
    problem(await api.get(GROUP, params={"topic": "__meta"}), 422, "invalid_topic")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/offsets"),
        ({"offsets": []}, "/offsets"),
        ({"offsets": [{"topic": "t", "partition": 0}]}, "/offsets/0/next_offset"),
        ({"offsets": [{"topic": "t", "partition": 0, "next_offset": -1}]}, "/offsets/0/next_offset"),
        ({"offsets": [{"topic": "t", "partition": -1, "next_offset": 0}]}, "/offsets/0/partition"),
        ({"offsets": [{"topic": "t", "partition": 0, "next_offset": 0, "reset": True}]}, "/offsets/0/reset"),
        ({"offsets": [{"topic": "t", "partition": 0, "next_offset": 0}] * 2}, "/offsets/1"),
    ],
)
async def test_wrong_commits(api: httpx.AsyncClient, body: dict[str, object], pointer: str) -> None:
    response = await api.put(GROUP, json=body)
    problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == pointer


async def test_commits_for_what_is_not_there(api: httpx.AsyncClient) -> None:
    problem(
        await api.put(GROUP, json={"offsets": [{"topic": "x", "partition": 0, "next_offset": 0}]}), 404, "unknown_topic"
    )
    problem(
        await api.put(GROUP, json={"offsets": [{"topic": "t", "partition": 9, "next_offset": 0}]}),
        404,
        "unknown_partition",
    )


def test_timestamps() -> None:
    assert parse_timestamp("0") == 0
    assert parse_timestamp("1700000000123") == 1_700_000_000_123_000
    assert parse_timestamp("2023-11-14T22:13:20.123456Z") == 1_700_000_000_123_456
    assert parse_timestamp("2023-11-14T23:13:20+01:00") == 1_700_000_000_000_000
    for wrong in ("", "1.5", "2023-11-14", "1969-12-31T23:59:59Z", "²"):
        with pytest.raises(Problem):
            parse_timestamp(wrong)
