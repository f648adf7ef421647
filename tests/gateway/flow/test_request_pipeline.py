from __future__ import annotations

import httpx
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

from tidelog.errors import OverloadedError
from tidelog_gateway.browser_headers import BROWSER_HEADERS

JSON = {"content-type": "application/json"}
BODY = b'{"records":[{"value":"a"}]}'
PUBLISH = "/v1/topics/t/records"


def has_all_headers(answer: httpx.Response) -> bool:
    return len(answer.headers["x-request-id"]) == 16 and all(name in answer.headers for name in BROWSER_HEADERS)


async def test_every_answer_has_an_id_and_browser_headers(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        answers = [
            await client.post(PUBLISH, content=BODY, headers=JSON),
            await client.post("/v1/topics/missing/records", content=BODY, headers=JSON),
            await client.get("/v1/topics"),
            await client.get("/nowhere"),
            await client.get("/livez?token=secret"),
        ]
    assert [answer.status_code for answer in answers] == [200, 404, 200, 404, 400]
    assert all(map(has_all_headers, answers))
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    for answer in answers:
        if answer.status_code >= 400:
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_pages_of_allowed_origins_read_the_answers_of_fast_paths(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    origin = {"origin": "https://page.example"}
    async with open_api(allowed_origins=["https://page.example"]) as client:
        answer = await client.post(PUBLISH, content=BODY, headers=JSON | origin)
        asked = await client.options(PUBLISH, headers=origin | {"access-control-request-method": "POST"})
        foreign = await client.post(PUBLISH, content=BODY, headers=JSON | {"origin": "https://other.example"})
    assert (answer.status_code, answer.json()) == (200, {"results": [{"partition": 0, "offset": 0}]})
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert asked.status_code == 200
    assert foreign.status_code == 403
    assert has_all_headers(answer)


async def test_a_fast_path_answers_errors_of_the_log_like_the_route(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    log.fault = OverloadedError("busy")
    async with open_api() as client:
        answer = await client.post(PUBLISH, content=BODY, headers=JSON)
        page = (await client.get("/metrics")).text
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "overloaded", "1")
    assert 'method="POST",route="/v1/topics/{topic}/records",status="429"} 1.0' in page
