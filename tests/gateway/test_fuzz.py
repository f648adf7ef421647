"""Random values in every field of every request: each succeeds or is a fault of the request.

A 5xx is a bug of the gateway, because the log in memory never fails.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.fake_log import FakeLog, opener
from tests.gateway.publishing.test_route import BODIES as FORMS

from tidelog_gateway.app import create_app
from tidelog_gateway.bodies.content_type import TAKEN
from tidelog_gateway.protocol.messages import REQUESTS
from tidelog_gateway.protocol.ws_protocol import Publish, WsProtocol
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.batch.record_batch import columns_of

FUZZED = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

NUMBERS = st.integers() | st.sampled_from([-1, 0, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**300]) | st.floats()
TIMES = st.datetimes(timezones=st.timezones()).map(str) | st.sampled_from(
    ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "24:00", "2013-W01-1", "253402300799999"]
)
NAMES = st.sampled_from(["t", "g", "__meta", "..", "%", "%00", "\u2028", "t" * 300]) | st.text(max_size=20)
SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | NAMES | st.sampled_from(["utf8", "base64", "json"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
RECORD_FIELDS = ("key", "value_encoding", "key_encoding", "headers", "tag", "partition", "timestamp_ms")
TOPIC_FIELDS = ("name", "partitions", "flush", "flush_interval_ms", "retention_bytes", "segment_bytes", "x")
RECORD = st.fixed_dictionaries(
    {"value": ANYTHING},
    optional=dict.fromkeys(RECORD_FIELDS, ANYTHING),
)
RECORDS = st.fixed_dictionaries({"records": st.lists(RECORD, max_size=3) | ANYTHING})
COMMIT = st.fixed_dictionaries(
    {"topic": NAMES, "partition": NUMBERS, "next_offset": NUMBERS}, optional={"note": ANYTHING}
)
COMMITS = st.fixed_dictionaries({"offsets": st.lists(COMMIT, max_size=3) | ANYTHING})
TOPIC = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(TOPIC_FIELDS, ANYTHING),
)
PARAMETERS = ("offset", "timestamp", "from", "max_records", "max_bytes", "wait_ms", "limit", "cursor", "key", "tag")
QUERY = st.dictionaries(
    st.sampled_from([*PARAMETERS, "partition", "topic", "other"]), (NUMBERS | TIMES | NAMES).map(str), max_size=3
)
PATHS = st.sampled_from(
    [
        "/v1/topics",
        "/v1/topics/{}",
        "/v1/topics/{}/records",
        "/v1/topics/{}/partitions/{}/records",
        "/v1/topics/{}/offsets",
        "/v1/topics/{}/partitions/{}/offsets",
        "/v1/groups/{}/offsets",
        "/v1/api-keys",
        "/v1/api-keys/{}",
        "/v1/rules",
        "/docs/assets/{}",
        "/ui/{}",
        "/{}",
    ]
)
BODIES = (RECORDS | COMMITS | TOPIC | ANYTHING).map(lambda content: json.dumps(content).encode()) | st.binary(
    max_size=50
)
TYPES = st.sampled_from([*TAKEN, "text/plain", "application/json;charset"])
METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"])


def opened() -> tuple[FakeLog, Any]:
    log = FakeLog()
    log.logs["t"] = [[], []]
    return log, create_app(GatewaySettings(fetch_wait_ms_max=0, allowed_hosts=["g"]), opener=opener(log))


@FUZZED
@given(target=st.tuples(METHODS, PATHS, NAMES, NUMBERS.map(str) | NAMES), query=QUERY, body=BODIES, content_type=TYPES)
def test_no_request_makes_the_gateway_fail(
    target: tuple[str, str, str, str], query: dict[str, str], body: bytes, content_type: str
) -> None:
    method, path, *parts = target

    async def request() -> httpx.Response:
        log, app = opened()
        await log.append("t", 0, columns_of([b"a", None, b"\xff"], timestamps_us=[0, 1, 10**15]))
        transport = httpx.ASGITransport(app)  # propagates exceptions of the application
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://g") as api:
            address = path.format(*(quote(part, safe="", errors="replace") for part in parts))
            params = {name: value.encode("utf-8", "replace").decode() for name, value in query.items()}
            headers = {"Content-Type": content_type}
            return await api.request(method, address, params=params, content=body, headers=headers)

    response = asyncio.run(request())
    assert response.status_code < 500, response.text
    if response.status_code >= 400 and method != "HEAD":
        assert response.json()["status"] == response.status_code


@FUZZED
@given(
    form=st.sampled_from(sorted(FORMS)),
    changes=st.lists(st.tuples(st.integers(0, 1_000), st.binary(max_size=3), st.integers(0, 3)), max_size=4),
    attributes=st.dictionaries(
        st.sampled_from(["ce-specversion", "ce-id", "ce-type", "ce-x"]), st.text('1.0%é"', max_size=4)
    ),
)
def test_no_body_of_a_publish_makes_the_gateway_fail(
    form: str, changes: list[tuple[int, bytes, int]], attributes: dict[str, str]
) -> None:
    body = FORMS[form]
    for place, inserted, removed in changes:
        at = place % (len(body) + 1)
        body = body[:at] + inserted + body[at + removed :]

    async def request() -> httpx.Response:
        _, app = opened()
        transport = httpx.ASGITransport(app)  # propagates exceptions of the application
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://g") as api:
            headers = [(b"Content-Type", form.encode()), *((n.encode(), v.encode()) for n, v in attributes.items())]
            return await api.post("/v1/topics/t/records", content=body, headers=headers)

    response = asyncio.run(request())
    assert response.status_code in {200, 207, 404, 413, 422}, response.text


MESSAGE = st.fixed_dictionaries(
    {"id": NUMBERS | ANYTHING},
    optional={
        "auth": st.fixed_dictionaries({"token": ANYTHING}),
        "sub": st.fixed_dictionaries(
            {"sid": st.just(1) | NUMBERS, "topic": NAMES, "credit": st.fixed_dictionaries({"records": NUMBERS})},
            optional={"group": ANYTHING, "from": ANYTHING, "resume": st.dictionaries(NUMBERS.map(str), NUMBERS)},
        ),
        "credit": st.fixed_dictionaries({"sid": st.just(1) | NUMBERS}, optional={"records": NUMBERS, "bytes": NUMBERS}),
        "commit": st.fixed_dictionaries(
            {"sid": st.just(1), "offsets": st.dictionaries(NUMBERS.map(str), NUMBERS)}, optional={"note": ANYTHING}
        ),
        "committed": st.fixed_dictionaries(
            {"group": NAMES, "topic": NAMES}, optional={"partitions": ANYTHING, "from_partition": NUMBERS}
        ),
        "pub": st.fixed_dictionaries({"topic": NAMES, "records": st.lists(RECORD, max_size=2) | ANYTHING}),
        "unsub": st.fixed_dictionaries({"sid": st.just(1) | ANYTHING}),
    },
)


@FUZZED
@given(messages=st.lists(MESSAGE.map(json.dumps) | ANYTHING.map(json.dumps) | st.text(max_size=40), max_size=6))
def test_no_message_makes_the_conversation_fail(messages: list[str]) -> None:
    protocol = WsProtocol(GatewaySettings())
    for message in ['{"id":1,"sub":{"sid":1,"topic":"t","group":"g","credit":{"records":1}}}', *messages]:
        action = protocol.receive(message, now_us=1)
        json.dumps(getattr(action, "message", None))
        if isinstance(action, Publish):
            action.records.columns()
    assert set(REQUESTS) == {"auth", "sub", "credit", "commit", "committed", "pub", "unsub"}
