"""Records by key and tag over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Callable

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import columns_of

RECORDS = "/v1/topics/t/partitions/0/records"
RAW = b"\xff/\xfe"


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[]]
    keys = [b"a", b"b", RAW, b"a", None]
    await log.append("t", 0, columns_of([b"0", b"1", b"2", None, b"4"], keys=keys, tags=["x", "y", "x", "y", None]))


def offsets(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return [record["offset"] for record in response.json()["records"]]


async def test_only_matching_records_are_returned(api: httpx.AsyncClient) -> None:
    response = await api.get(RECORDS, params={"key": "a"})
    assert offsets(response) == [0, 3]
    assert response.json()["next_offset"] == 5
    assert offsets(await api.get(RECORDS, params={"tag": "x"})) == [0, 2]
    assert offsets(await api.get(RECORDS, params={"tag": "x", "key": "a"})) == [0]
    assert offsets(await api.get(RECORDS, params={"key": "nobody"})) == []
    assert offsets(await api.get(RECORDS, params={"key": "a", "offset": 1})) == [3]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
async def test_keys_that_are_not_text_are_sent_in_base64(
    api: httpx.AsyncClient, encode: Callable[[bytes], bytes]
) -> None:
    named = {"key": encode(RAW).decode(), "key_encoding": "base64"}
    response = await api.get(RECORDS, params=named)
    assert offsets(response) == [2]
    assert response.json()["records"][0]["key_encoding"] == "base64"
    response = await api.get(f"/v1/topics/t/keys/{encode(RAW).decode()}", params={"key_encoding": "base64"})
    assert response.json()["record"]["offset"] == 2


async def test_the_newest_record_of_a_key_is_returned(api: httpx.AsyncClient) -> None:
    response = await api.get("/v1/topics/t/keys/b")
    assert response.json() == {
        "partition": 0,
        "record": {
            "offset": 1,
            "timestamp_ms": 1000,
            "key": "b",
            "value": "1",
            "value_encoding": "utf8",
            "tag": "y",
        },
    }
    assert (await api.get("/v1/topics/t/keys/a")).json()["record"]["value"] is None, "a tombstone"


async def test_keys_may_have_any_character(api: httpx.AsyncClient, log: FakeLog) -> None:
    for key in ("a/b", "ä ?#", "", "a\nb", "a\n", "\n", "\r\n/\u2028\x85\0"):
        headers = [[("h", b"\xff"), ("i", b"text")]]
        await log.append("t", 0, columns_of([key.encode()], keys=[key.encode()], headers=headers))
        response = await api.get(httpx.URL("/v1/topics/t/keys/" + "".join(f"%{byte:02X}" for byte in key.encode())))
        record = response.json()["record"]
        assert (record["key"], record["value"]) == (key, key)
        assert record["headers"] == [["h", "/w==", "base64"], ["i", "text"]]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics/t/keys/%ff"),
        ("GET", "/v1/topics/t/keys/a%C3"),
        ("GET", RECORDS + "?key=%fe"),
        ("POST", "/v1/topics/t/records?key=%ff"),
        ("POST", "/v1/topics/t/records?key=a&tag=%ED%A0%80"),
    ],
)
async def test_a_key_that_is_not_text_is_not_confused_with_another(
    api: httpx.AsyncClient, log: FakeLog, method: str, path: str
) -> None:
    replaced = "\N{REPLACEMENT CHARACTER}".encode()
    await log.append("t", 0, columns_of([b"5"], keys=[replaced]))
    before = len(log.logs["t"][0])
    response = await api.request(method, path, content=b"x", headers={"Content-Type": "application/octet-stream"})
    problem(response, 400, "malformed_request")
    assert len(log.logs["t"][0]) == before
    found = await api.get("/v1/topics/t/keys/%EF%BF%BD")
    assert found.json()["record"]["value"] == "5", "the replacement character itself may be a key"


async def test_a_key_is_searched_in_its_partition_or_in_the_requested_one(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["two"] = [[], []]
    home = partition_for_key(b"k", 2)
    await log.append("two", 1 - home, columns_of([b"away"], keys=[b"k"]))
    problem(await api.get("/v1/topics/two/keys/k"), 404, "not_found")
    response = await api.get("/v1/topics/two/keys/k", params={"partition": 1 - home})
    assert (response.json()["partition"], response.json()["record"]["value"]) == (1 - home, "away")


async def test_faults_of_keys_are_reported(api: httpx.AsyncClient) -> None:
    problem(await api.get("/v1/topics/t/keys/nobody"), 404, "not_found")
    problem(await api.get("/v1/topics/none/keys/a"), 404, "unknown_topic")
    bad = {"key_encoding": "base64"}
    problem(await api.get("/v1/topics/t/keys/not%20base64", params=bad), 422, "invalid_request")
    problem(await api.get(RECORDS, params={"key": "?", **bad}), 422, "invalid_request")
    problem(await api.get(RECORDS, params={"key": "a", "key_encoding": "hex"}), 422, "invalid_request")
    problem(await api.get(RECORDS, params={"tag": "t" * 4097}), 422, "invalid_request")
