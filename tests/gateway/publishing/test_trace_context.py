"""The trace context of a request in the headers of the records that it publishes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.publishing.trace_context import STATE_CHARS_MAX, trace_in

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = "00-11111111111111111111111111111111-2222222222222222-01"
TRACE = {"traceparent": PARENT, "tracestate": "vendor=1"}
PUBLISH = "/v1/topics/t/records"


async def headers_of(log: FakeLog) -> list[Any]:
    return [record.headers for batch in log.read("t", 0, 0) for record in batch]


@pytest.mark.parametrize("raw", [False, True])
async def test_records_get_the_context_of_the_request(open_api: OpenApi, log: FakeLog, raw: bool) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        if raw:
            sent = await client.post(
                PUBLISH, content=b"x", headers=TRACE | {"content-type": "application/octet-stream"}
            )
        else:
            sent = await client.post(PUBLISH, json={"records": [{"value": "a"}, {"value": "b"}]}, headers=TRACE)
        assert sent.status_code == 200, sent.text
    expected = [("traceparent", PARENT.encode()), ("tracestate", b"vendor=1")]
    assert [list(each) for each in await headers_of(log)] == [expected] * (1 if raw else 2)


async def test_a_record_keeps_its_own_context(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    records = [{"value": "a", "headers": [["Traceparent", OWN]]}, {"value": "b", "headers": [["h", "1"]]}]
    async with open_api() as client:
        assert (await client.post(PUBLISH, json={"records": records}, headers=TRACE)).status_code == 200
    first, second = [list(each) for each in await headers_of(log)]
    assert first == [("Traceparent", OWN.encode())]
    assert second == [("h", b"1"), ("traceparent", PARENT.encode()), ("tracestate", b"vendor=1")]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-xyz",
        PARENT.upper(),
        f"ff{PARENT[2:]}",
        f"{PARENT}-more",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        f"01{PARENT[2:]}-{'a' * 200}",
    ],
)
def test_an_invalid_context_is_ignored(parent: str) -> None:
    assert trace_in([(b"traceparent", parent.encode()), (b"tracestate", b"a=1")]) is None


def test_a_repeated_context_is_ignored_and_a_later_version_is_accepted() -> None:
    twice = [(b"traceparent", PARENT.encode()), (b"traceparent", OWN.encode())]
    assert trace_in(twice) is None
    later = f"01{PARENT[2:]}-more".encode()
    assert trace_in([(b"traceparent", later)]) == [("traceparent", later)]


def test_states_are_joined_and_dropped_if_too_long() -> None:
    parent = (b"traceparent", PARENT.encode())
    states = [(b"tracestate", b"a=1"), (b"tracestate", b" b=2")]
    assert trace_in([parent, *states]) == [("traceparent", PARENT.encode()), ("tracestate", b"a=1,b=2")]
    long = [(b"tracestate", b"a" * (STATE_CHARS_MAX + 1))]
    assert trace_in([parent, *long]) == [("traceparent", PARENT.encode())]
    assert trace_in(states) is None
