from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.gateway.bodies.arrow_streams import batch, stream
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES
from tidelog_gateway.fast_paths.commit_fast_path import commit_fast_path
from tidelog_gateway.fast_paths.fetch_fast_path import fetch_fast_path
from tidelog_gateway.fast_paths.publish_fast_path import publish_fast_path

JSON = (b"content-type", b"application/json")
BODY = b'{"records":[{"value":"a"}]}'
RECORDS = "/v1/topics/t/partitions/0/records"


def scope_of(method: str, path: str, *headers: tuple[bytes, bytes], query: bytes = b"") -> dict[str, Any]:
    return {"method": method, "path": path, "query_string": query, "headers": [(b"host", b"x"), *headers]}


def test_a_plain_publish_is_taken() -> None:
    for path in ("/v1/topics/t/records", "/v1/topics/__meta/records"):
        for accept in ((), ((b"accept", b"*/*"),), ((b"accept", b"text/html, application/json;q=0.5"),)):
            assert publish_fast_path(scope_of("POST", path, JSON, *accept), BODY) is not None


@pytest.mark.parametrize(
    ("scope", "size"),
    [
        (scope_of("PUT", "/v1/topics/t/records", JSON), 10),
        (scope_of("POST", "/v1/topics/t/records"), 10),
        (scope_of("POST", "/v1/topics/t/records", (b"content-type", b"application/octet-stream")), 10),
        (scope_of("POST", "/v1/topics/t/records", (b"content-type", b"application/json; charset=latin-1")), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, JSON), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, (b"content-encoding", b"gzip")), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, (b"idempotency-key", b"1")), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, (b"ce-specversion", b"1.0")), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, (b"accept", b"text/html")), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON, query=b"key=a"), 10),
        (scope_of("POST", "/v1/topics/t/records/", JSON), 10),
        (scope_of("POST", "/v1/topics/t/u/records", JSON), 10),
        (scope_of("POST", "/v1/topics/t/records", JSON), AT_ONCE_BYTES + 1),
    ],
)
def test_another_publish_is_left_to_the_route(scope: dict[str, Any], size: int) -> None:
    assert publish_fast_path(scope, b" " * size) is None


def test_a_plain_commit_is_taken() -> None:
    assert commit_fast_path(scope_of("PUT", "/v1/groups/g/offsets", JSON), BODY) is not None
    for scope in (
        scope_of("GET", "/v1/groups/g/offsets"),
        scope_of("PUT", "/v1/groups/g/offsets"),
        scope_of("PUT", "/v1/groups/g/offsets", JSON, query=b"a=b"),
        scope_of("PUT", "/v1/groups/g/offsets:reset", JSON),
    ):
        assert commit_fast_path(scope, BODY) is None


def test_a_fetch_from_an_offset_is_taken() -> None:
    for query in (b"offset=0", b"max_records=5&offset=12&max_bytes=1&wait_ms=0"):
        assert fetch_fast_path(scope_of("GET", RECORDS, query=query), b"") is not None


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"max_records=1",
        b"offset=0&",
        b"offset=0&offset=0",
        b"offset=-1",
        b"offset=+1",
        b"offset=01",
        b"offset=%30",
        b"offset=" + b"9" * 19,
        b"offset=0&max_records=0",
        b"offset=0&max_bytes=0",
        b"offset=0&key=a",
        b"offset=0&from=latest",
        b"offset=0&unknown=1",
        b"offset=0\n",
    ],
)
def test_another_fetch_is_left_to_the_route(query: bytes) -> None:
    assert fetch_fast_path(scope_of("GET", RECORDS, query=query), b"") is None


def test_a_partition_above_the_limit_is_left_to_the_route() -> None:
    for number in ("100000", "01", "-1", "x"):
        scope = scope_of("GET", f"/v1/topics/t/partitions/{number}/records", query=b"offset=0")
        assert fetch_fast_path(scope, b"") is None


async def ask(client: httpx.AsyncClient, *, by_route: bool, offset: int = 0, topic: str = "t") -> httpx.Response:
    """Fetch by the fast path, or with a header that leaves the request to the framework's route."""
    headers = [("accept", "*/*"), ("x-twice", "1"), ("x-twice", "2")] if by_route else [("accept", "*/*")]
    return await client.get(f"/v1/topics/{topic}/partitions/0/records", params={"offset": offset}, headers=headers)


async def test_fast_path_and_route_answer_the_same(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with open_api(body_bytes_max=2048) as client:
        for path, content in (
            ("t", BODY),
            ("t", b'{"records":[{"value":1}]}'),
            ("t", b'{"records":[{"value":"' + b"a" * 3000 + b'"}]}'),
            ("__meta", BODY),
            ("missing", BODY),
        ):
            answers: list[httpx.Response] = []
            for query in ("", "?"):  # an empty query counts as no query
                headers = [("content-type", "application/json"), *([("x-twice", "1")] * (2 if query else 0))]
                url = f"/v1/topics/{path}/records"
                answers.append(await client.post(url, content=content, headers=headers))
            compare(*answers)
        for offset, topic in ((0, "t"), (1, "t"), (99, "t"), (0, "missing"), (0, "__meta")):
            compare(
                await ask(client, by_route=False, offset=offset, topic=topic),
                await ask(client, by_route=True, offset=offset, topic=topic),
            )


@pytest.mark.parametrize(
    "offsets",
    [
        [{"topic": "t", "partition": 0, "next_offset": 0}],
        [{"topic": "t", "partition": 0, "next_offset": 0, "note": "n"}],
        [{"topic": "t", "partition": 0, "next_offset": 7}],
        [{"topic": "t", "partition": 0, "next_offset": 0}] * 2,
        [{"topic": "t", "partition": -1, "next_offset": 0}],
        [{"topic": "t", "partition": 0, "next_offset": 2**63}],
        [{"topic": "t", "partition": 0, "next_offset": 1.0}],
        [{"topic": "t", "partition": 0, "next_offset": 0, "note": "n" * 5000}],
        [{"topic": "t", "partition": 0, "next_offset": 0, "more": 1}],
        [{"topic": "__meta", "partition": 0, "next_offset": 0}],
        [{"topic": "missing", "partition": 0, "next_offset": 0}],
        [{"topic": "t", "partition": 0}],
        [],
        {},
    ],
)
@pytest.mark.parametrize("group", ["g", "a%20b", "%0a"])
async def test_commits_by_fast_path_and_route_are_answered_the_same(
    open_api: OpenApi, log: FakeLog, offsets: Any, group: str
) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        answers = [
            await client.put(
                f"/v1/groups/{group}/offsets",
                json={"offsets": offsets},
                headers=[("content-type", "application/json"), *([("x-twice", "1")] * times)],
            )
            for times in (0, 2)
        ]
    compare(*answers)


def compare(fast_path: httpx.Response, route: httpx.Response) -> None:
    """Compare answers except for the request id and the offset, which differ in each."""
    assert fast_path.status_code == route.status_code
    own = {"x-request-id", "content-length"}
    assert {name: value for name, value in fast_path.headers.items() if name not in own} == {
        name: value for name, value in route.headers.items() if name not in own
    }
    first, second = fast_path.json(), route.json()
    for each in (first, second):
        each.pop("request_id", None)
        for result in each.get("results", ()):
            result.pop("offset")
    assert first == second


async def test_requests_of_a_fast_path_are_counted_with_the_template_of_the_route(
    open_api: OpenApi, log: FakeLog
) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        await ask(client, by_route=False)
        await ask(client, by_route=True)
        page = (await client.get("/metrics")).text
    counted = 'method="GET",route="/v1/topics/{topic}/partitions/{partition}/records",status="200"} 2.0'
    assert counted in page


async def test_an_exception_in_a_fast_path_is_a_problem(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]

    def broken(_: bytes | None) -> None:
        raise ZeroDivisionError

    log.refuse = broken
    async with open_api() as client:
        answer = await client.post("/v1/topics/t/records", content=BODY, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def arrow(*values: bytes, count: int = 1) -> bytes:
    return stream(*[batch(value=pa.array(values, pa.binary()))] * count)


async def test_fast_path_and_route_publish_columns_alike(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with open_api(records_per_request_max=200) as client:
        for topic, content in (
            ("t", arrow(b"a", b"b")),
            ("t", arrow(b"a", count=100)),  # many batches take turns
            ("t", arrow(*[b"a"] * 201)),
            ("t", b"x"),
            ("__meta", arrow(b"a")),
            ("missing", arrow(b"a")),
        ):
            answers: list[httpx.Response] = []
            for twice in (1, 2):
                headers = [("content-type", "application/vnd.apache.arrow.stream"), *[("x-twice", "1")] * twice]
                answers.append(await client.post(f"/v1/topics/{topic}/records", content=content, headers=headers))
            compare_columns(*answers)


def compare_columns(*answers: httpx.Response) -> None:
    """Compare answers except for request ids and offsets, which differ in each."""
    first, second = [answer.json() for answer in answers]
    assert answers[0].status_code == answers[1].status_code
    for document in (first, second):
        document.pop("request_id", None)
        for each in document.get("ranges", ()):
            del each["base_offset"]
    assert first == second
