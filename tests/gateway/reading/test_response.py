"""One partition in every format: `GET /v1/topics/{topic}/partitions/{partition}/records`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx
import orjson
import pyarrow as pa
import pytest
from tests.gateway.conftest import OpenApi, Serve
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON, NDJSON, RECORD_TYPES
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.limits import MIB

PATH = "/v1/topics/t/partitions/0/records"
VALUES = [b'{"a":1.10}', b"text", b"\xff\xfe", None, b"7"]


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[]]
    keys = [b"k", None, b"\xff", b"k", b""]
    await log.append(
        "t", 0, columns_of(VALUES[:3], keys=keys[:3], tags=["x", None, "y"], timestamps_us=[0, 1000, 2000])
    )
    await log.append("t", 0, columns_of(VALUES[3:], keys=keys[3:], timestamps_us=[3000, 4000]))


async def test_each_media_type(api: httpx.AsyncClient) -> None:
    expected = (await api.get(PATH)).json()
    for media_type in RECORD_TYPES:
        response = await api.get(PATH, headers={"Accept": media_type})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].partition(";")[0] == media_type
        assert response.headers["vary"] == "Accept"
        if media_type != JSON:
            assert response.headers["tidelog-next-offset"] == "5"
            assert response.headers["tidelog-log-start-offset"] == "0"
            assert response.headers["tidelog-high-watermark"] == "5"
        if media_type == NDJSON:
            lines = [json.loads(line) for line in response.text.splitlines()]
            told = [{n: v for n, v in record.items() if (n, v) != ("tag", None)} for record in expected["records"]]
            assert lines == [{"partition": 0, **record} for record in told]
        if media_type == ARROW:
            table = pa.ipc.open_stream(response.content).read_all()
            assert table["value"].to_pylist() == VALUES
        if media_type == CSV:
            assert response.text.splitlines()[1] == '0,0,0,"k","utf8","{""a"":1.10}","utf8","x",'
            assert response.text.splitlines()[3] == '0,2,2,"/w==","base64","//4=","base64","y",'
            assert response.text.splitlines()[4] == '0,3,3,"k","utf8",,,,'


async def test_the_preferred_format_is_used_on_the_fast_path_too(serve: Serve) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as client:
        for path in (PATH, f"{PATH}?offset=0"):
            for accept, expected in (
                ("application/json;q=0.5, application/x-ndjson", NDJSON),
                ("*/*, application/json;q=0", NDJSON),
                ("text/csv;q=0.2, application/*;q=0.1", CSV),
                ("text/html, */*;q=0.1", JSON),
                ("*/*", JSON),
            ):
                response = await client.get(path, headers={"Accept": accept})
                assert response.headers["content-type"].partition(";")[0] == expected, (path, accept)
                assert response.headers["vary"] == "Accept"


async def test_unsupported_media_types_are_refused_with_the_supported_ones(api: httpx.AsyncClient) -> None:
    for path in (PATH, f"{PATH}?offset=0", "/v1/topics/t/records"):
        response = await api.get(path, headers={"Accept": "application/xml, application/json;q=0"})
        problem(response, 406, "not_acceptable")
        assert response.json()["offered"] == list(RECORD_TYPES)
        assert response.headers["vary"] == "Accept"


async def test_no_records_in_each_form(api: httpx.AsyncClient) -> None:
    for media_type in RECORD_TYPES:
        response = await api.get(PATH, params={"offset": 5}, headers={"Accept": media_type})
        assert response.status_code == 200
        if media_type == ARROW:
            assert pa.ipc.open_stream(response.content).read_all().num_rows == 0
        elif media_type == CSV:
            assert response.text.count("\n") == 1, "the names of the columns"
        elif media_type == NDJSON:
            assert response.text == ""
    response = await api.get(PATH, params={"offset": 5, "value_encoding": "json"})
    assert response.json() == {"records": [], "next_offset": 5, "log_start_offset": 0, "high_watermark": 5}


async def test_json_values_come_as_they_were_sent(api: httpx.AsyncClient) -> None:
    response = await api.get(PATH, params={"value_encoding": "json"})
    assert b'"value":{"a":1.10},"value_encoding":"json"' in response.content
    assert response.json()["next_offset"] == 1, "the next value is not JSON"


@pytest.mark.parametrize(
    ("encoding", "offset", "code"),
    [("json", 1, "value_not_json"), ("json", 2, "value_not_json"), ("utf8", 2, "value_not_utf8")],
)
@pytest.mark.parametrize("media_type", RECORD_TYPES)
async def test_a_value_that_does_not_fit_is_an_error(
    api: httpx.AsyncClient, encoding: str, offset: int, code: str, media_type: str
) -> None:
    params: dict[str, str | int] = {"value_encoding": encoding, "offset": offset}
    response = await api.get(PATH, params=params, headers={"Accept": media_type})
    problem(response, 422, code)
    document = response.json()
    assert (document["partition"], document["offset"], document["next_offset"]) == (0, offset, offset + 1)


async def test_base64_is_not_supported_in_arrow(api: httpx.AsyncClient) -> None:
    response = await api.get(PATH, params={"value_encoding": "base64"}, headers={"Accept": ARROW})
    problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["parameter"] == "value_encoding"
    problem(await api.get(PATH, params={"value_encoding": "hex"}), 422, "invalid_request")


async def test_filters_times_and_limits_hold_in_each_form(api: httpx.AsyncClient) -> None:
    for params, expected in (
        ({"key": "k"}, [0, 3]),
        ({"key": "_w", "key_encoding": "base64"}, None),
        ({"key": "_w==", "key_encoding": "base64"}, [2]),
        ({"tag": "y"}, [2]),
        ({"timestamp": 2}, [2, 3, 4]),
        ({"from": "latest"}, []),
        ({"max_records": 2}, [0, 1]),
        ({"max_bytes": 12}, [0]),
        ({"offset": 4, "max_bytes": 1}, [4]),
    ):
        response = await api.get(PATH, params=params, headers={"Accept": NDJSON})
        if expected is None:
            problem(response, 422, "invalid_request")
        else:
            assert [orjson.loads(line)["offset"] for line in response.text.splitlines()] == expected, params


async def test_limits_are_those_of_the_settings(open_api: OpenApi) -> None:
    async with open_api(records_per_request_max=2) as api:
        for media_type in RECORD_TYPES:
            refused = await api.get(PATH, params={"max_records": 3}, headers={"Accept": media_type})
            problem(refused, 422, "invalid_request")
        assert (await api.get(PATH, headers={"Accept": NDJSON})).text.count("\n") == 2, "the default respects the limit"


@pytest.mark.parametrize(
    "path", [f"{PATH}?offset=5", PATH + "?from=latest&value_encoding=json", "/v1/topics/t/records?from=latest"]
)
async def test_a_client_that_closes_ends_its_wait(serve: Serve, path: str) -> None:
    async with serve() as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            assert (await client.get("/livez")).status_code == 200
        serving = asyncio.all_tasks()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"GET {path}&wait_ms=30000 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await asyncio.sleep(0.3)
        assert asyncio.all_tasks() - serving, "it waits"
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        del reader
        async with asyncio.timeout(5):
            while asyncio.all_tasks() - serving:  # noqa: ASYNC110 # no event to wait for
                await asyncio.sleep(0.01)


async def test_a_slow_reader_of_much_arrow_is_counted_and_cut(serve: Serve, log: FakeLog) -> None:
    for _ in range(8):
        await log.append("t", 0, columns_of([b"x" * MIB]))
    async with serve(ws_slow_timeout_s=0.5) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(f"GET {PATH}?offset=5 HTTP/1.1\r\nHost: x\r\nAccept: {ARROW}\r\n\r\n".encode())
            async with httpx.AsyncClient(base_url=served.http) as client:
                assert (await client.get(PATH, headers={"Accept": ARROW})).status_code == 200
                await asyncio.sleep(1.5)
                page = (await client.get("/metrics")).text
            held = next(line for line in page.splitlines() if line.startswith("tidelog_gateway_out_bytes"))
            assert float(held.split()[1]) < MIB, "the budget of the slow client was not released"
