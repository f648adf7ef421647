from __future__ import annotations

import asyncio
import gzip
from typing import Any, cast

import httpx
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeClient, FakeLog
from tests.gateway.test_app import problem

from tidelog.client import Client
from tidelog.errors import BatchTooLargeError, TidelogError
from tidelog.model import Receipt
from tidelog_gateway.bodies.content_type import TAKEN
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.publishing.publish import (
    ANSWER_PART_RECORDS,
    LOOSE_RECORDS_MAX,
    Outcome,
    answer_of,
    large_answer_of,
    publish,
)
from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.settings import GatewaySettings

PATH = "/v1/topics/t/records"


@pytest.fixture(autouse=True)
def topic(log: FakeLog) -> None:
    log.logs["t"] = [[], []]


def stored(log: FakeLog, partition: int) -> list[Any]:
    return [record for batch in log.logs["t"][partition] for record in batch]


async def test_stored_records_are_200_in_the_order_of_the_request(api: httpx.AsyncClient, log: FakeLog) -> None:
    records = [{"key": "k", "value": f"v{index}", "partition": index % 2} for index in range(6)]
    response = await api.post(PATH, json={"records": records})
    assert response.status_code == 200
    assert response.json() == {"results": [{"partition": index % 2, "offset": index // 2} for index in range(6)]}
    assert [record.value for record in stored(log, 1)] == [b"v1", b"v3", b"v5"]


async def test_every_member_reaches_the_log(api: httpx.AsyncClient, log: FakeLog) -> None:
    record = {"key": "k", "value": None, "headers": [["h", "1"]], "tag": "x", "timestamp_ms": 7, "partition": 1}
    assert (await api.post(PATH, json={"records": [record]})).status_code == 200
    (found,) = stored(log, 1)
    assert (found.key, found.value, found.headers, found.tag) == (b"k", None, (("h", b"1"),), "x")
    assert found.timestamp_us == 7000


async def test_many_records_are_sent_as_columns_and_keep_their_places(api: httpx.AsyncClient, log: FakeLog) -> None:
    count = LOOSE_RECORDS_MAX * 3
    records = [{"value": str(index), "partition": index % 2} for index in range(count)]
    results = (await api.post(PATH, json={"records": records})).json()["results"]
    assert results == [{"partition": index % 2, "offset": index // 2} for index in range(count)]
    assert len(log.logs["t"][0]) == 1, "one native batch a partition"
    assert [record.value for record in stored(log, 1)] == [str(index).encode() for index in range(1, count, 2)]


@pytest.mark.parametrize("count", [3, LOOSE_RECORDS_MAX + 3])
async def test_a_mixed_outcome_is_207(api: httpx.AsyncClient, count: int) -> None:
    records: list[dict[str, Any]] = [{"value": "a", "partition": 0}] * count
    records[1] = {"value": "b", "partition": 9}
    response = await api.post(PATH, json={"records": records})
    assert response.status_code == 207
    results = response.json()["results"]
    assert results[0] == {"partition": 0, "offset": 0}
    assert results[1]["error"]["code"] == "unknown_partition"
    assert results[1]["error"]["status"] == 404
    assert results[2] == {"partition": 0, "offset": 1}


async def test_a_refused_record_does_not_affect_the_others(api: httpx.AsyncClient, log: FakeLog) -> None:
    def refuse(value: bytes | None) -> TidelogError | None:
        return BatchTooLargeError("too large") if value == b"large" else None

    log.refuse = refuse
    response = await api.post(PATH, json={"records": [{"value": "a"}, {"value": "large"}, {"value": "b"}]})
    assert response.status_code == 207
    assert ["error" in result for result in response.json()["results"]] == [False, True, False]


async def test_one_error_of_all_records_is_the_answer(api: httpx.AsyncClient) -> None:
    records = {"records": [{"value": "a"}] * 2}
    problem(await api.post("/v1/topics/none/records", json=records), 404, "unknown_topic")
    problem(await api.post(PATH, json={"records": [{"value": "a", "partition": 9}]}), 404, "unknown_partition")


async def test_an_invalid_body_stores_nothing(api: httpx.AsyncClient, log: FakeLog) -> None:
    response = await api.post(PATH, json={"records": [{"value": "good"}, {"key": "no value"}]})
    problem(response, 422, "invalid_request")
    assert response.json()["errors"] == [{"pointer": "/records/1/value", "detail": "is missing; add it"}]
    assert not stored(log, 0)
    assert not stored(log, 1)


async def test_too_many_records_are_refused(open_api: OpenApi) -> None:
    async with open_api(records_per_request_max=2) as api:
        assert (await api.post(PATH, json={"records": [{"value": "a"}] * 2})).status_code == 200
        problem(await api.post(PATH, json={"records": [{"value": "a"}] * 3}), 422, "invalid_request")


async def test_a_raw_body_is_one_record(api: httpx.AsyncClient, log: FakeLog) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    params = {"key": "k", "tag": "x", "partition": "1"}
    response = await api.post(PATH, content=b"\x00\xff", headers=headers, params=params)
    assert response.json() == {"results": [{"partition": 1, "offset": 0}]}
    assert (await api.post(PATH, content=b"", headers=headers, params={"partition": "1"})).status_code == 200
    first, second = stored(log, 1)
    assert (first.key, first.value, first.tag) == (b"k", b"\x00\xff", "x")
    assert second.value == b"", "an empty body is an empty value, not a tombstone"
    problem(await api.post(PATH, content=b"", headers=headers, params={"partition": "-1"}), 422, "invalid_request")
    problem(await api.post(PATH, content=b"", headers=headers, params={"tag": "ü" * 2049}), 422, "invalid_request")
    problem(await api.post(PATH, json={"records": [{"value": "a"}]}, params={"key": "k"}), 422, "invalid_request")


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-ndjsons", "application/jsonx"])
async def test_other_media_types_are_refused(api: httpx.AsyncClient, media_type: str) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    response = await api.post(PATH, content=b"{}", headers=headers)
    problem(response, 415, "unsupported_media_type")
    assert response.headers["accept-post"] == ", ".join(TAKEN)


async def test_a_compressed_body_is_refused_instead_of_stored_unchanged(api: httpx.AsyncClient) -> None:
    for encoding, media_type in (("gzip", "application/octet-stream"), ("br", "application/json")):
        headers = {"Content-Type": media_type, "Content-Encoding": encoding}
        response = await api.post(PATH, content=gzip.compress(b"{}"), headers=headers)
        problem(response, 415, "unsupported_content_encoding")
        assert response.headers["accept-encoding"] == "identity"
    headers = {"Content-Type": "application/octet-stream", "Content-Encoding": "Identity"}
    assert (await api.post(PATH, content=b"plain", headers=headers)).json()["results"][0]["offset"] == 0


async def test_a_charset_parameter_is_accepted(api: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await api.post(PATH, content=b'{"records":[{"value":"a"}]}', headers=headers)).status_code == 200


async def test_concurrent_requests_share_a_producer(api: httpx.AsyncClient, log: FakeLog) -> None:
    body = {"records": [{"value": "a"}]}
    answers = await asyncio.gather(*(api.post(PATH, json=body) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    offsets = sorted(answer.json()["results"][0]["offset"] for answer in answers)
    assert offsets == list(range(20))
    assert log.producers == 1


@pytest.mark.parametrize("count", [3, LOOSE_RECORDS_MAX + 3])
async def test_requests_are_stored_whole_and_in_order_while_the_owner_is_unknown(log: FakeLog, count: int) -> None:
    budget, outgoing, client = RequestBudget(1000), ResponseBudget(1000, 1000), cast(Client, FakeClient(log))
    producers = Producers(client, producer_limit=ProducerLimit(1), delivery_timeout_s=1)
    gateway = Gateway(GatewaySettings(), client, producers, Metrics(budget, outgoing), budget, outgoing)

    def begin(*values: bytes) -> asyncio.Future[Any]:
        partitions: list[int | None] = [0] * len(values)
        records = Records(list(values), partitions=partitions)
        return asyncio.ensure_future(publish(gateway, "t", records, surface="websocket"))

    log.enqueued.clear()
    bodies = [[b"%d-%d" % (number, index) for index in range(count)] for number in range(4)]
    requests = [begin(*body) for body in bodies]
    await asyncio.sleep(0)
    log.enqueued.set()
    requests.append(begin(b"last"))
    await asyncio.gather(*requests)
    expected = [value for body in bodies for value in body]
    assert [record.value for record in stored(log, 0)] == [*expected, b"last"]


async def test_records_with_and_without_a_partition_keep_their_order_in_a_large_request(
    api: httpx.AsyncClient, log: FakeLog
) -> None:
    count = LOOSE_RECORDS_MAX * 2
    records = [{"value": str(index)} | ({"partition": 0} if index % 2 else {}) for index in range(count)]
    results = (await api.post(PATH, json={"records": records})).json()["results"]
    assert [result["offset"] for result in results] == list(range(count))
    assert [record.value for record in stored(log, 0)] == [str(index).encode() for index in range(count)]


async def test_an_answer_of_many_outcomes_is_made_in_parts_and_equals_that_of_one_part() -> None:
    outcomes: list[Outcome] = [
        Receipt(at % 3, -1 if at % 7 == 0 else at, 0) for at in range(2 * ANSWER_PART_RECORDS + 1)
    ]
    turn = asyncio.ensure_future(asyncio.sleep(0))
    assert await large_answer_of(outcomes) == answer_of(outcomes)
    assert turn.done(), "other requests run between the parts"
    outcomes[-1] = BatchTooLargeError("too large")
    assert await large_answer_of(outcomes) == answer_of(outcomes)
    assert (await large_answer_of(outcomes[:1])) == answer_of(outcomes[:1])
