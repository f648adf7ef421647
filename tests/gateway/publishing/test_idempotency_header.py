"""`Idempotency-Key` with real gateways and a real node: the log recognises a retry through any gateway."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import OpenApi, process
from tests.gateway.secured import bearer, secured

from tidelog_gateway.problems import Problem
from tidelog_gateway.publishing.idempotency_header import KEY_CHARS_MAX, key_in

PORTS = ("--port", "0", "--management-port", "0")


@pytest.fixture
async def path(http: httpx.AsyncClient) -> str:
    name = f"t-{secrets.token_hex(4)}"
    assert (await http.post("/v1/topics", json={"name": name, "partitions": 4})).status_code == 201
    return f"/v1/topics/{name}/records"


def body_of(count: int, **fields: Any) -> dict[str, Any]:
    return {"records": [{"value": f"v{number}", **fields} for number in range(count)]}


def keyed_body(count: int) -> dict[str, Any]:
    return {"records": [{"key": f"k{number}", "value": f"v{number}"} for number in range(count)]}


async def stored(http: httpx.AsyncClient, path: str) -> int:
    topic = (await http.get(path.removesuffix("/records"))).json()
    count = 0
    for partition in range(topic["partitions"]):
        at = f"{path.removesuffix('/records')}/partitions/{partition}/records"
        offset = 0
        while True:
            page = (await http.get(at, params={"offset": offset})).json()
            count += len(page["records"])
            if page["next_offset"] <= offset:
                break
            offset = page["next_offset"]
    return count


@pytest.mark.e2e
@pytest.mark.parametrize("body", [body_of(1), body_of(3), keyed_body(1), keyed_body(200)], ids=str)
async def test_a_retry_returns_the_first_answer_at_every_gateway(
    http: httpx.AsyncClient, path: str, node_address: str, body: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": "order-17"}
    first = await http.post(path, json=body, headers=headers)
    assert first.status_code == 200, first.text
    assert (await http.post(path, json=body, headers=headers)).json() == first.json()
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ready['http_port']}", timeout=30) as other:
            assert (await other.post(path, json=body, headers=headers)).json() == first.json()
    assert await stored(http, path) == len(body["records"])


@pytest.mark.e2e
async def test_another_request_with_the_same_key_is_refused(http: httpx.AsyncClient, path: str) -> None:
    headers = {"Idempotency-Key": "one"}
    assert (await http.post(path, json=body_of(2), headers=headers)).status_code == 200
    refused = await http.post(path, json=body_of(3), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    raw = headers | {"Content-Type": "application/octet-stream"}
    assert (await http.post(path, content=b"x", headers=raw)).status_code == 422
    again = headers | {"Idempotency-Key": "two"}
    first = await http.post(path, content=b"x", params={"key": "a"}, headers=raw | again)
    assert first.status_code == 200
    assert (await http.post(path, content=b"x", params={"key": "b"}, headers=raw | again)).status_code == 422
    assert (await http.post(path, content=b"x", params={"key": "a"}, headers=raw | again)).json() == first.json()
    assert await stored(http, path) == 3


@pytest.mark.e2e
async def test_the_headers_of_an_event_are_part_of_the_fingerprint(http: httpx.AsyncClient, path: str) -> None:
    def event(subject: str) -> dict[str, str]:
        names = {"specversion": "1.0", "id": "1", "source": "/x", "type": "t", "subject": subject}
        return {f"ce-{name}": value for name, value in names.items()} | {"Idempotency-Key": "event"}

    first = await http.post(path, content=b"x", headers=event("a"))
    assert first.status_code == 200, first.text
    assert (await http.post(path, content=b"x", headers=event("a"))).json() == first.json()
    assert (await http.post(path, content=b"x", headers=event("b"))).json()["code"] == "idempotency_key_reused"
    assert await stored(http, path) == 1


@pytest.mark.e2e
async def test_a_retry_of_csv_returns_the_first_answer(http: httpx.AsyncClient, path: str) -> None:
    headers = {"Idempotency-Key": "csv", "Content-Type": "text/csv"}
    first = await http.post(path, content=b"key,value\na,1\nb,2\n", headers=headers)
    assert first.status_code == 200, first.text
    assert (await http.post(path, content=b"key,value\na,1\nb,2\n", headers=headers)).json() == first.json()
    assert await stored(http, path) == 2


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
async def test_forms_without_support_refuse_a_key(http: httpx.AsyncClient, path: str, form: str) -> None:
    headers = {"Idempotency-Key": "lines", "Content-Type": form}
    refused = await http.post(path, content=b'{"value":"x"}\n', headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency_key_unsupported")
    assert form in refused.json()["detail"]
    assert await stored(http, path) == 0


@pytest.mark.e2e
async def test_concurrent_requests_with_one_key_return_one_answer(http: httpx.AsyncClient, path: str) -> None:
    headers = {"Idempotency-Key": "at once"}
    answers = await asyncio.gather(*[http.post(path, json=keyed_body(20), headers=headers) for _ in range(10)])
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert await stored(http, path) == 20


@pytest.mark.e2e
async def test_a_retry_after_partitions_were_added_returns_the_first_answer(http: httpx.AsyncClient, path: str) -> None:
    bodies = [body_of(1), keyed_body(1), keyed_body(50)]
    firsts = [await http.post(path, json=body, headers={"Idempotency-Key": f"{at}"}) for at, body in enumerate(bodies)]
    grown = await http.patch(path.removesuffix("/records"), json={"partitions": 9})
    assert grown.status_code == 200
    for at, body in enumerate(bodies):
        again = await http.post(path, json=body, headers={"Idempotency-Key": f"{at}"})
        assert again.json() == firsts[at].json()
    assert await stored(http, path) == 52


@pytest.mark.e2e
async def test_a_retry_to_a_topic_with_deduplication_returns_the_first_answer(
    http: httpx.AsyncClient,
) -> None:
    name = f"t-{secrets.token_hex(4)}"
    await http.post("/v1/topics", json={"name": name, "deduplicate_s": 600, "deduplicate_records": 1000})
    path, body = f"/v1/topics/{name}/records", {"records": [{"value": "a"}, {"value": "b"}, {"value": "a"}]}
    first = await http.post(path, json=body, headers={"Idempotency-Key": "1"})
    assert first.json()["duplicates"] == 1
    assert (await http.post(path, json=body, headers={"Idempotency-Key": "1"})).json() == first.json()
    all_dropped = await http.post(path, json=body, headers={"Idempotency-Key": "2"})
    assert all_dropped.json()["duplicates"] == 3
    assert (await http.post(path, json=body, headers={"Idempotency-Key": "2"})).json() == all_dropped.json()


@pytest.mark.e2e
def test_a_retry_after_gateway_and_node_were_killed_returns_the_first_answer(tmp_path: Path) -> None:
    data, headers = str(tmp_path / "data"), {"Idempotency-Key": "k"}
    firsts: list[Any] = []
    bodies = [body_of(1), keyed_body(30)]
    with process("node", "--data", data, *PORTS) as (node, ready):
        port = str(ready["port"])
        with process("gateway", "--bootstrap", f"127.0.0.1:{port}", "--http-port", "0") as (gateway, at):
            with httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=30) as http:
                for number, body in enumerate(bodies):
                    http.post("/v1/topics", json={"name": f"t{number}", "partitions": 3})
                    firsts.append(http.post(f"/v1/topics/t{number}/records", json=body, headers=headers).json())
            gateway.kill()
            gateway.wait()
        node.kill()
        node.wait()
    with (
        process("node", "--data", data, "--port", port, "--management-port", "0"),
        process("gateway", "--bootstrap", f"127.0.0.1:{port}", "--http-port", "0") as (_, at),
        httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=60) as http,
    ):
        for number, body in enumerate(bodies):
            again = http.post(f"/v1/topics/t{number}/records", json=body, headers=headers)
            assert again.json() == firsts[number]


@pytest.mark.e2e
def test_a_request_to_a_suspended_node_is_answered_soon_and_its_retry_stores_it_once(tmp_path: Path) -> None:
    with process("node", "--data", str(tmp_path / "data"), *PORTS) as (node, ready):
        address = f"127.0.0.1:{ready['port']}"
        with (
            process("gateway", "--bootstrap", address, "--http-port", "0") as (_, at),
            httpx.Client(base_url=f"http://127.0.0.1:{at['http_port']}", timeout=60) as http,
        ):
            http.post("/v1/topics", json={"name": "t", "partitions": 2})
            path, headers = "/v1/topics/t/records", {"Idempotency-Key": "k"}
            assert http.post(path, json=body_of(1), headers={"Idempotency-Key": "j"}).status_code == 200
            node.send_signal(signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                unknown = http.post(path, json=body_of(2), headers=headers)
                took_s = time.monotonic() - began_s
            finally:
                node.send_signal(signal.SIGCONT)
            assert (unknown.status_code, unknown.json()["retryable"]) == (504, True), unknown.text
            assert took_s < 10, "much less than the request's timeout of 30 s"
            answers = [http.post(path, json=body_of(2), headers=headers).json() for _ in range(2)]
            assert answers[0] == answers[1]
            partition = answers[0]["results"][0]["partition"]
            found = http.get(f"/v1/topics/t/partitions/{partition}/records").json()["records"]
            assert [record["value"] for record in found].count("v1") == 1


async def test_two_callers_may_use_the_same_key(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        keys = [await gate.key_of(name, (("produce", "describe"), "topic", "t")) for name in ("ann", "bob")]
        places = []
        for key in keys:
            headers = bearer(key) | {"Idempotency-Key": "same"}
            sent = await gate.request("POST", "/v1/topics/t/records", headers, body_of(1))
            assert sent.status_code == 200, sent.text
            places.append(sent.json()["results"][0]["offset"])
        assert places == [0, 1]
        stranger = await gate.key_of("eve")
        refused = await gate.request(
            "POST", "/v1/topics/t/records", bearer(stranger) | {"Idempotency-Key": "same"}, body_of(1)
        )
        assert refused.status_code in {403, 404}


@pytest.mark.parametrize("value", ["", "k" * (KEY_CHARS_MAX + 1), "kéy", "a\tb"])
async def test_a_malformed_key_is_refused(open_api: OpenApi, value: str) -> None:
    async with open_api() as api:
        await api.post("/v1/topics", json={"name": "t"})
        headers = [(b"Idempotency-Key", value.encode())]
        refused = await api.post("/v1/topics/t/records", json=body_of(1), headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, "idempotency_key_invalid")


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(Problem, match="send it once"):
        key_in([(b"idempotency-key", b"a"), (b"idempotency-key", b"a")])
    assert key_in([(b"idempotency-key", b"a b")]) == b"a b"
    assert key_in([(b"host", b"a")]) is None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics", {"name": "u"}),
        ("PATCH", "/v1/topics/t", {"partitions": 2}),
        ("DELETE", "/v1/topics/t", None),
        ("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "next_offset": 0}]}),
    ],
)
async def test_a_route_without_support_refuses_a_key(api: httpx.AsyncClient, method: str, path: str, body: Any) -> None:
    await api.post("/v1/topics", json={"name": "t"})
    refused = await api.request(method, path, json=body, headers={"Idempotency-Key": "k"})
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency_key_unsupported")
