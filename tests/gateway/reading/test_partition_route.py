from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem
from tests.proto.derived_batches import END_OFFSET, STARTS, compacted_log, survivors_from

from tidelog_gateway.reading.partition_route import NATIVE_BYTES_MIN
from tidelog_proto.batch.record_batch import columns_of

PATH = "/v1/topics/t/partitions/0/records"


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[]]
    for base in range(0, 9, 3):
        await log.append(
            "t",
            0,
            columns_of(
                [f"v{base + at}".encode() for at in range(3)], timestamps_us=[(base + at) * 1000 for at in range(3)]
            ),
        )


def values(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [record["value"] for record in response.json()["records"]]


async def test_a_whole_partition_is_read(api: httpx.AsyncClient) -> None:
    response = await api.get(PATH)
    assert values(response) == [f"v{at}" for at in range(9)]
    body = response.json()
    assert (body["next_offset"], body["log_start_offset"], body["high_watermark"]) == (9, 0, 9)
    assert body["records"][4] == {
        "offset": 4,
        "timestamp_ms": 4,
        "key": None,
        "value": "v4",
        "value_encoding": "utf8",
    }


@pytest.mark.parametrize(("limit", "steps"), [("max_records", 4), ("max_bytes", 4)])
async def test_next_offset_continues_exactly(api: httpx.AsyncClient, limit: str, steps: int) -> None:
    seen: list[str] = []
    offset = 0
    while offset < 9:
        response = await api.get(PATH, params={"offset": offset, limit: steps})
        assert len(values(response)) <= steps
        seen += values(response)
        offset = response.json()["next_offset"]
    assert seen == [f"v{at}" for at in range(9)]


async def test_a_read_begins_at_an_offset_a_time_or_an_end(api: httpx.AsyncClient) -> None:
    assert values(await api.get(PATH, params={"offset": 7})) == ["v7", "v8"]
    assert values(await api.get(PATH, params={"timestamp": 5})) == ["v5", "v6", "v7", "v8"]
    assert values(await api.get(PATH, params={"timestamp": "1970-01-01T00:00:00.008+00:00"})) == ["v8"]
    assert values(await api.get(PATH, params={"timestamp": "99999"})) == []
    assert len(values(await api.get(PATH, params={"from": "earliest"}))) == 9
    latest = await api.get(PATH, params={"from": "latest"})
    assert values(latest) == []
    assert latest.json()["next_offset"] == 9


async def test_an_offset_that_is_deleted_or_does_not_exist_yet_is_refused_with_the_bounds(
    api: httpx.AsyncClient, log: FakeLog
) -> None:
    log.starts["t", 0] = 3
    gone = await api.get(PATH, params={"offset": 2})
    problem(gone, 410, "offset_out_of_range")
    assert (gone.json()["log_start_offset"], gone.json()["high_watermark"]) == (3, 9)
    problem(await api.get(PATH, params={"offset": 10}), 422, "offset_out_of_range")


async def test_a_wait_returns_the_next_record(api: httpx.AsyncClient, log: FakeLog) -> None:
    waiting = asyncio.create_task(api.get(PATH, params={"offset": 9, "wait_ms": 30_000}))
    await log.fetch_waits.wait()
    await log.append("t", 0, columns_of([b"late"]))
    assert values(await waiting) == ["late"]


@pytest.mark.parametrize(
    "params",
    [
        {"offset": -1},
        {"offset": "x"},
        {"offset": 2**63},
        {"max_records": 0},
        {"max_bytes": 0},
        {"wait_ms": -1},
        {"from": "middle"},
        {"timestamp": "yesterday"},
        {"timestamp": "-1"},
        {"timestamp": "2013-01-01T00:00:00"},
        {"timestamp": "9" * 30},
        {"timestamp": "9" * 5000},
        {"timestamp": 1_700_000_000},
        {"timestamp": 1_700_000_000_000_000},
        {"offset": 1, "timestamp": 1},
        {"offset": 1, "from": "latest"},
    ],
)
async def test_invalid_parameters_are_refused(api: httpx.AsyncClient, params: dict[str, int | str]) -> None:
    response = await api.get(PATH, params=params)
    problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["parameter"]


async def test_limits_of_the_settings_are_enforced(open_api: OpenApi) -> None:
    async with open_api(records_per_request_max=5, fetch_bytes_max=1024, fetch_wait_ms_max=10) as api:
        for name, value in (("max_records", 6), ("max_bytes", 1025), ("wait_ms", 11)):
            response = await api.get(PATH, params={name: value})
            problem(response, 422, "invalid_request")
            assert response.json()["errors"][0]["parameter"] == name
        assert values(await api.get(PATH)) == [f"v{at}" for at in range(5)], "the default respects the limit"


async def test_unknown_topics_and_partitions_are_refused(api: httpx.AsyncClient) -> None:
    problem(await api.get("/v1/topics/none/partitions/0/records"), 404, "unknown_topic")
    problem(await api.get("/v1/topics/t/partitions/1/records"), 404, "unknown_partition")
    problem(await api.get("/v1/topics/t/partitions/-1/records"), 422, "invalid_request")
    problem(await api.get("/v1/topics/t/partitions/x/records"), 422, "invalid_request")


@pytest.mark.parametrize("per_fetch", [1, 2, None])
@pytest.mark.parametrize("records", [1, 100])
@pytest.mark.parametrize("start", STARTS)
async def test_a_compacted_log_is_read_from_any_offset(
    api: httpx.AsyncClient, log: FakeLog, start: int, records: int, per_fetch: int | None
) -> None:
    log.logs["t"] = [[]]
    log.plant("t", 0, compacted_log())
    log.batches_per_fetch = per_fetch
    offset, offsets = start, list[int]()
    while offset < END_OFFSET:
        body = (await api.get(PATH, params={"offset": offset, "max_records": records})).json()
        assert body["next_offset"] > offset
        assert body["records"] or body["next_offset"] == END_OFFSET, "an answer without records is at the end"
        assert all(record["value"] == str(record["offset"]) for record in body["records"])
        offsets += [record["offset"] for record in body["records"]]
        offset = body["next_offset"]
    assert offsets == survivors_from(start)


async def test_a_wait_after_the_last_record_returns_the_next_one(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    log.plant("t", 0, compacted_log())
    waiting = asyncio.create_task(api.get(PATH, params={"offset": 62, "wait_ms": 20_000}))
    await log.fetch_waits.wait()
    await log.append("t", 0, columns_of([b"new"]))
    body = (await waiting).json()
    assert [(record["offset"], record["value"]) for record in body["records"]] == [(END_OFFSET, "new")]


async def test_a_fetch_asks_for_the_bytes_that_its_records_probably_have(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.obeys_bytes = True
    assert values(await api.get(PATH, params={"offset": 0, "max_records": 3})) == ["v0", "v1", "v2"]
    assert values(await api.get(PATH, params={"offset": 4, "max_records": 3})) == ["v4", "v5", "v6"]
    assert log.fetch_bytes[0] == NATIVE_BYTES_MIN
    assert len(log.fetch_bytes) == 2, "the estimate covers records that begin inside a batch"
    assert log.fetch_bytes[1] < 2 * len(log.raw(log.logs["t"][0][0])) + 3


async def test_a_fetch_whose_estimate_was_too_low_returns_as_many_records_as_one_without(
    api: httpx.AsyncClient, log: FakeLog
) -> None:
    log.obeys_bytes = True
    await api.get(PATH, params={"offset": 0, "max_records": 6})
    for _ in range(3):
        await log.append("t", 0, columns_of([b"x" * 1000] * 3))
    response = await api.get(PATH, params={"offset": 9, "max_records": 6})
    assert values(response) == ["x" * 1000] * 6
    assert response.json()["next_offset"] == 15
    assert len(log.fetch_bytes) == 3
    assert log.fetch_bytes[2] == NATIVE_BYTES_MIN
    await api.get(PATH, params={"offset": 9, "max_records": 6})
    assert len(log.fetch_bytes) == 4, "the estimate has been raised"


async def test_a_fetch_at_the_end_of_the_log_is_not_repeated(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.obeys_bytes = True
    await api.get(PATH, params={"offset": 0, "max_records": 3})
    assert values(await api.get(PATH, params={"offset": 7, "max_records": 100})) == ["v7", "v8"]
    assert values(await api.get(PATH, params={"offset": 9, "max_records": 100})) == []
    assert len(log.fetch_bytes) == 3


@pytest.mark.parametrize("value", [b"text", "ä€".encode(), b'a "quoted" text', b"\xff\x00"])
async def test_small_plain_batches_have_the_same_answer_as_slices(
    api: httpx.AsyncClient, log: FakeLog, value: bytes
) -> None:
    log.logs["t"] = [[]]
    keys, tags, stamps = [b"k", b"\n", b""], ["a", "b", "c"], [1000, 2000, 3000]
    await log.append("t", 0, columns_of([value, b"", value], keys=keys, tags=tags, timestamps_us=stamps))
    whole = (await api.get(PATH, params={"offset": 0})).json()
    slices = [(await api.get(PATH, params={"offset": at, "max_records": 1})).json()["records"] for at in range(3)]
    assert whole["records"] == [record for records in slices for record in records]
    assert whole["next_offset"] == 3
    limited = (await api.get(PATH, params={"offset": 0, "max_bytes": len(value) + 2})).json()
    assert (len(limited["records"]), limited["next_offset"]) == (1, 1)
