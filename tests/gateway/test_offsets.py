from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_gateway.offsets import parse_timestamp
from tidelog_gateway.problems import Problem
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.process.epoch_units import EPOCH

GROUP = "/v1/groups/g/offsets"


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 0, columns_of([b"a", b"b", b"c"], timestamps_us=[1000, 2000, 3500]))


async def test_bounds_of_every_partition_are_returned(api: httpx.AsyncClient) -> None:
    body = (await api.get("/v1/topics/t/offsets")).json()
    assert body["topic"] == "t"
    assert [(each["partition"], each["log_start_offset"], each["next_offset"]) for each in body["offsets"]] == [
        (0, 0, 3),
        (1, 0, 0),
    ]


async def test_offsets_are_found_by_time(api: httpx.AsyncClient) -> None:
    view = (await api.get("/v1/topics/t/partitions/0/offsets", params={"timestamp": 2})).json()
    assert (view["next_offset"], view["found"], view["timestamp_ms"]) == (1, True, 2)
    view = (await api.get("/v1/topics/t/partitions/0/offsets", params={"timestamp": 4})).json()
    assert (view["next_offset"], view["found"], view["timestamp_ms"]) == (3, False, None)
    problem(await api.get("/v1/topics/t/partitions/7/offsets"), 404, "unknown_partition")


async def test_commits_are_stored_and_only_advance(api: httpx.AsyncClient) -> None:
    items = [
        {"topic": "t", "partition": 0, "next_offset": 2, "note": "n"},
        {"topic": "t", "partition": 1, "next_offset": 0},
    ]
    put = await api.put(GROUP, json={"offsets": items})
    assert put.status_code == 200
    assert put.json() == (await api.get(GROUP)).json()
    first, second = put.json()["offsets"]
    told = {"note": "n", "commit_timestamp_ms": 5, "epoch": 3}
    assert first == {"topic": "t", "partition": 0, "next_offset": 2} | told
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
async def test_invalid_commits_are_refused(api: httpx.AsyncClient, body: dict[str, object], pointer: str) -> None:
    response = await api.put(GROUP, json=body)
    problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == pointer


async def test_commits_for_missing_partitions_are_refused(api: httpx.AsyncClient) -> None:
    problem(
        await api.put(GROUP, json={"offsets": [{"topic": "x", "partition": 0, "next_offset": 0}]}), 404, "unknown_topic"
    )
    problem(
        await api.put(GROUP, json={"offsets": [{"topic": "t", "partition": 9, "next_offset": 0}]}),
        404,
        "unknown_partition",
    )


def us_of(text: str) -> int:
    return (parse_timestamp(text) - EPOCH) // timedelta(microseconds=1)


def test_timestamps_are_parsed() -> None:
    assert us_of("0") == 0
    assert us_of("1700000000123") == 1_700_000_000_123_000
    assert us_of("2023-11-14T22:13:20.123456Z") == 1_700_000_000_123_456
    assert us_of("2023-11-14T23:13:20+01:00") == 1_700_000_000_000_000
    for wrong in ("", "1.5", "2023-11-14", "1969-12-31T23:59:59Z", "²"):
        with pytest.raises(Problem):
            parse_timestamp(wrong)


def test_a_timestamp_in_another_unit_than_milliseconds_is_refused() -> None:
    for text, remedy in (
        ("1700000000", "pass 1700000000000, or the ISO 8601 text 1970-01-20T16:13:20.000000Z"),
        ("1700000000123456", "in microseconds, but milliseconds since 1970 are expected; pass 1700000000123"),
    ):
        with pytest.raises(Problem, match=remedy):
            parse_timestamp(text)


async def test_a_commit_above_the_end_is_refused_with_the_bounds(api: httpx.AsyncClient, log: FakeLog) -> None:
    response = await api.put(GROUP, json={"offsets": [{"topic": "t", "partition": 0, "next_offset": 4}]})
    problem(response, 422, "offset_out_of_range")
    assert response.json()["high_watermark"] == 3
    assert not log.groups


@pytest.mark.parametrize(
    "text",
    [
        "9999-12-31T23:59:59-23:59",
        "9999-12-31T23:59:59.999999-00:01",
        "0001-01-01T00:00:00+23:59",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "253402300800000",
        "9" * 40,
        "2013-01-01",
        "2013-01-01T00:00:00",
        "2013-01-01T00:00:00+24:00",
        "2013-02-30T00:00:00Z",
        "\u0661",
        "1e3",
        "-1",
        "nan",
        "",
    ],
)
async def test_malformed_times_are_refused(api: httpx.AsyncClient, text: str) -> None:
    for path in ("offsets", "partitions/0/offsets", "partitions/0/records"):
        response = await api.get(f"/v1/topics/t/{path}", params={"timestamp": text})
        problem(response, 422, "invalid_request")
        assert response.json()["errors"][0]["parameter"] == "timestamp"


def test_the_smallest_and_the_largest_time_are_accepted() -> None:
    assert us_of("1970-01-01T00:00:00Z") == us_of("0") == 0
    assert us_of("1969-12-31T23:59:00-00:01") == 0
    assert us_of("253402300799999") == 253_402_300_799_999_000
    assert us_of("9999-12-31T23:59:59.999999Z") == 253_402_300_799_999_999
    assert us_of("9999-12-31T23:59:59.999999+23:59") == 253_402_300_799_999_999 - (24 * 60 - 1) * 60_000_000
