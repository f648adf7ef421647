"""Each form of a body over HTTP: stored records, parameters, and answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.gateway.bodies.arrow_streams import batch, stream
from tests.gateway.conftest import OpenApi, Serve
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_gateway.bodies.content_type import TAKEN
from tidelog_gateway.publishing.route import PARAMETERS
from tidelog_proto.publish_pb2 import PublishRecord, PublishRecords

PATH = "/v1/topics/t/records"
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
BODIES: dict[str, bytes] = {
    "application/json": b'{"records":[{"value":"a"}]}',
    "application/octet-stream": b"a",
    "application/x-ndjson": b'{"value":"a"}\n',
    "text/csv": b"value\na\n",
    "application/vnd.apache.arrow.stream": stream(batch(value=pa.array([b"a"]))),
    "application/x-protobuf": PublishRecords(records=[PublishRecord(value=b"a")]).SerializeToString(),
    "application/protobuf": PublishRecords(records=[PublishRecord(value=b"a")]).SerializeToString(),
    "application/cloudevents+json": json.dumps(EVENT | {"datacontenttype": "text/plain", "data": "a"}).encode(),
    "application/cloudevents-batch+json": json.dumps([EVENT | {"data_base64": "YQ=="}]).encode(),
}


@pytest.fixture(autouse=True)
def topic(log: FakeLog) -> None:
    log.logs["t"] = [[], []]


def stored(log: FakeLog, partition: int = 0) -> list[Any]:
    return [record for each in log.logs["t"][partition] for record in each]


async def post(api: httpx.AsyncClient, media_type: str, body: bytes | None = None, **more: Any) -> httpx.Response:
    headers = {"Content-Type": media_type} | more.pop("headers", {})
    return await api.post(PATH, content=BODIES[media_type] if body is None else body, headers=headers, **more)


def test_every_form_has_a_body_here() -> None:
    assert set(BODIES) == set(TAKEN)


@pytest.mark.parametrize("media_type", BODIES)
async def test_each_form_is_stored(api: httpx.AsyncClient, log: FakeLog, media_type: str) -> None:
    response = await post(api, media_type)
    assert response.status_code == 200, response.text
    assert [record.value for record in stored(log)] == [b"a"]
    place = {"partition": 0, "offset": 0}
    if media_type == "application/x-ndjson":
        assert response.headers["content-type"] == media_type
        assert list(map(json.loads, response.text.splitlines())) == [
            {"line": 1} | place,
            {"done": True, "records": 1, "stored": 1, "failed": 0},
        ]
    elif media_type == "application/vnd.apache.arrow.stream":
        assert response.json() == {"records": 1, "ranges": [{"partition": 0, "base_offset": 0, "count": 1}]}
    else:
        assert response.json() == {"results": [place]}


@pytest.mark.parametrize("media_type", BODIES)
async def test_an_unknown_topic_is_404_in_each_form(open_api: OpenApi, log: FakeLog, media_type: str) -> None:
    log.logs.clear()
    async with open_api() as api:
        problem(await post(api, media_type), 404, "unknown_topic")


@pytest.mark.parametrize("media_type", BODIES)
async def test_each_form_has_its_limits(open_api: OpenApi, log: FakeLog, media_type: str) -> None:
    async with open_api(body_bytes_max=1024) as api:
        response = await post(api, media_type, b"x" * 2048)
        if media_type == "application/x-ndjson":
            problem(response, 413, "body_too_large")
        else:
            problem(response, 413, "body_too_large")
    async with open_api(in_flight_bytes_max=1024, body_bytes_max=8192) as api:
        problem(await post(api, media_type, b" " * 4096), 429, "overloaded")
    assert not stored(log)


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("text/csv", b"value\na\nb\nc\n"),
        ("application/vnd.apache.arrow.stream", stream(batch(value=pa.array([b"a"] * 3)))),
        ("application/x-protobuf", PublishRecords(records=[PublishRecord(value=b"a")] * 3).SerializeToString()),
        ("application/cloudevents-batch+json", json.dumps([EVENT] * 3).encode()),
    ],
)
async def test_records_of_a_request_are_limited(open_api: OpenApi, log: FakeLog, media_type: str, body: bytes) -> None:
    async with open_api(records_per_request_max=2) as api:
        problem(await post(api, media_type, body), 422, "invalid_request")
    assert not stored(log)


@pytest.mark.parametrize("media_type", BODIES)
async def test_parameters_of_other_forms_are_refused(api: httpx.AsyncClient, log: FakeLog, media_type: str) -> None:
    values = {"key": "k", "key_encoding": "utf8", "tag": "x", "partition": "1", "timestamp_ms": "1", "header": "a:b"}
    values |= {"empty_value": "empty", "receipts": "all"}
    allowed = PARAMETERS.get(media_type, frozenset())
    for name, value in values.items():
        if name not in allowed:
            refused = await post(api, media_type, params={name: value})
            problem(refused, 422, "invalid_request")
            assert refused.json()["errors"][0]["parameter"] == name
    assert not stored(log)
    assert (await post(api, media_type, params={name: values[name] for name in allowed})).status_code == 200


async def test_a_raw_record_takes_its_other_parts_from_the_query(api: httpx.AsyncClient, log: FakeLog) -> None:
    params = [("key", "_w=="), ("key_encoding", "base64"), ("tag", "x"), ("partition", "1"), ("timestamp_ms", "7")]
    params += [("header", "a:b:c"), ("header", "a:base64:_w=="), ("header", "e:")]
    assert (await post(api, "application/octet-stream", b"v", params=params)).status_code == 200
    (record,) = stored(log, 1)
    assert (record.key, record.value, record.tag, record.timestamp_us) == (b"\xff", b"v", "x", 7_000)
    assert record.headers == (("a", b"b:c"), ("a", b"\xff"), ("e", b""))
    for name, value in (
        ("header", "a"),
        ("header", ":b"),
        ("header", "a:base64:%"),
        ("header", "a:base64:_x=="),
        ("timestamp_ms", "-1"),
    ):
        problem(await post(api, "application/octet-stream", params={name: value}), 422, "invalid_request")
    for key in ("%", "_x==", "_w", "_w==\n"):
        params = [("key", key), ("key_encoding", "base64")]
        problem(await post(api, "application/octet-stream", params=params), 422, "invalid_request")
    twice = [("key", "a"), ("key", "b")]
    problem(await post(api, "application/octet-stream", params=twice), 422, "invalid_request")


async def test_a_binary_cloudevent_may_have_any_media_type(api: httpx.AsyncClient, log: FakeLog) -> None:
    attributes = {f"ce-{name}": value for name, value in EVENT.items()} | {"ce-partitionkey": "k"}
    for media_type, body in (("application/json", BODIES["application/json"]), ("text/plain", b"x")):
        response = await post(api, media_type, body, headers=attributes)
        assert response.json()["results"][0]["partition"] == 1
    first, second = stored(log, 1)
    assert (first.key, first.value) == (b"k", BODIES["application/json"])
    assert dict(first.headers)["content-type"] == b"application/json"
    assert second.value == b"x"
    problem(await post(api, "application/json", headers={"ce-specversion": "1.0"}), 422, "invalid_request")


async def test_rows_of_arrow_go_to_the_partition_of_the_query(api: httpx.AsyncClient, log: FakeLog) -> None:
    given = batch(value=pa.array([b"a", None]), key=pa.array(["k", "l"]))
    response = await post(api, "application/vnd.apache.arrow.stream", stream(given), params={"partition": "1"})
    assert response.json()["ranges"] == [{"partition": 1, "base_offset": 0, "count": 2}]
    assert [(record.key, record.value) for record in stored(log, 1)] == [(b"k", b"a"), (b"l", None)]


async def test_the_accept_header_is_checked_against_the_form(api: httpx.AsyncClient) -> None:
    lines = "application/x-ndjson"
    assert (await post(api, lines, headers={"Accept": lines})).status_code == 200
    problem(await post(api, lines, headers={"Accept": "application/json"}), 406, "not_acceptable")
    problem(await post(api, "text/csv", headers={"Accept": lines}), 406, "not_acceptable")
    problem(await post(api, "text/csv", headers={"Accept": "text/html"}), 406, "not_acceptable")


async def test_a_repeated_type_or_another_charset_is_refused(api: httpx.AsyncClient) -> None:
    twice = [("Content-Type", "text/csv"), ("Content-Type", "application/json")]
    problem(await api.post(PATH, content=BODIES["text/csv"], headers=twice), 422, "invalid_request")
    refused = await post(api, "text/csv", headers={"Content-Type": "text/csv; charset=latin-1"})
    problem(refused, 415, "unsupported_media_type")
    assert (await post(api, "text/csv", headers={"Content-Type": 'text/csv; charset="UTF-8"'})).status_code == 200


async def test_the_head_is_checked_before_the_body_is_read(serve: Serve) -> None:
    """A client that waits for 100 Continue gets the error instead."""
    async with serve() as served:
        for head, status in (
            ("Content-Type: text/plain", b"415"),
            ("Content-Type: application/json\r\nContent-Encoding: gzip", b"415"),
            ("Content-Type: application/json\r\nContent-Type: text/csv", b"422"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            request = (
                f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n{head}\r\n\r\n"
            )
            writer.write(request.encode())
            assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == status
            writer.close()
