"""CloudEvents keep the bytes of their data; attributes become headers as the Kafka protocol binding names them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelog_gateway.bodies.cloudevents import binary_event, event_batch, structured_event
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_decoding import Records

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
HEADERS = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]


async def pace() -> None:
    pass


def event(**members: Any) -> bytes:
    return json.dumps(ATTRIBUTES | members).encode()


async def structured(body: bytes) -> Records:
    return await structured_event(body, pace=pace)


async def fault(body: bytes) -> dict[str, str]:
    with pytest.raises(Problem) as caught:
        await structured(body)
    assert caught.value.status == 422
    found: dict[str, str] = caught.value.extra["errors"][0]
    return found


async def test_json_data_is_stored_as_it_was_sent() -> None:
    data = b'{"a" : 12345678901234567.890, "a":\t"\\u00e9"}'
    records = await structured(b' {"data": ' + data + b" , " + event()[1:])
    assert records.values == [data]
    assert records.headers == [[*HEADERS, ("content-type", b"application/json")]]
    assert records.keys is None
    large = b'"' + b"x" * 50_000 + b'"'
    assert (await structured(b'{"data": ' + large + b"," + event()[1:])).values == [large]


@pytest.mark.parametrize(
    ("members", "value", "content_type"),
    [
        ({"datacontenttype": "application/vnd.x+json; v=1", "data": [1, 2]}, b"[1, 2]", b"application/vnd.x+json; v=1"),
        ({"datacontenttype": "text/plain", "data": 'é"\n'}, 'é"\n'.encode(), b"text/plain"),
        ({"datacontenttype": "image/png", "data_base64": "/w=="}, b"\xff", b"image/png"),
        ({"data_base64": ""}, b"", None),
        ({"data": None}, b"null", b"application/json"),
        ({"data": "text"}, b'"text"', b"application/json"),
        ({}, b"", None),
    ],
)
async def test_the_value_is_the_data(members: dict[str, Any], value: bytes, content_type: bytes | None) -> None:
    records = await structured(event(**members))
    assert records.values == [value]
    assert records.headers is not None
    assert dict(records.headers[0]).get("content-type") == content_type


async def test_attributes_of_each_type_and_the_key() -> None:
    records = await structured(
        event(partitionkey="ü", count=-7, flag=True, absent=None, time="2026-01-02T03:04:05.678Z")
    )
    assert records.keys == ["ü".encode()]
    assert records.headers is not None
    assert records.headers[0][4:] == [
        ("ce_partitionkey", "ü".encode()),
        ("ce_count", b"-7"),
        ("ce_flag", b"true"),
        ("ce_time", b"2026-01-02T03:04:05.678Z"),
    ]


@pytest.mark.parametrize(
    ("body", "where", "told"),
    [
        (event(specversion="0.3"), "/specversion", "must be 1.0, got '0.3'"),
        (event(id=""), "/id", "is empty"),
        (event(type=None), "/type", "is missing"),
        (event(partitionkey=""), "/partitionkey", "is empty"),
        (event(myExtension="x"), "/myExtension", "lower-case letters and digits"),
        (event(x={"a": 1}), "/x", "a string, a boolean or an integer of 32 bits"),
        (event(x=1.5), "/x", "a string, a boolean"),
        (event(x=2**31), "/x", "an integer of 32 bits"),
        (event(x="a\nb"), "/x", "control characters"),
        (event(time="yesterday"), "/time", "RFC 3339"),
        (event(time="2020-13-45T00:00:00Z"), "/time", "RFC 3339"),
        (event(time="2023-02-29T00:00:00Z"), "/time", "RFC 3339"),
        (event(time="2020-01-01T24:00:00Z"), "/time", "RFC 3339"),
        (event(time="2020-01-01T00:60:00Z"), "/time", "RFC 3339"),
        (event(time="2020-01-01T00:00:61Z"), "/time", "RFC 3339"),
        (event(time="2020-01-01T00:00:00+24:00"), "/time", "RFC 3339"),
        (event(datacontenttype=""), "/datacontenttype", "is empty: send a value, or leave it out"),
        (event(subject=""), "/subject", "is empty"),
        (event(dataschema=""), "/dataschema", "is empty"),
        (event(subject="\ud800"), "", "is not JSON: surrogates not allowed"),
        (event(data_base64="\ud800"), "", "surrogates not allowed"),
        (event(**{"\ud800": "a"}), "", "surrogates not allowed"),
        (event(data=1, data_base64=""), "/data_base64", "must not have both data and data_base64"),
        (event(data_base64="%"), "/data_base64", "is not base64"),
        (event(data_base64="YR=="), "/data_base64", "is not canonical base64: it ends with YR=="),
        (event(data_base64=1), "/data_base64", "must be a string of base64"),
        (event(datacontenttype="text/plain", data={}), "/data", "must be a string, as datacontenttype is text/plain"),
        (event()[:-1] + b',"data":"\\ud800"}', "", "is not JSON"),
        (event()[:-1] + b',"data":NaN}', "", "is not JSON"),
        (event()[:-1] + b',"data":"\xff"}', "/data", "utf-8"),
        (event() + b"," + event(), "", "more than 1 records"),
        (b"[" + event() + b"]", "", "application/cloudevents-batch+json"),
        (b"", "", "the body is empty"),
        (b"1", "", "this event or one of the next is not JSON, or not an object"),
        (event()[:-1], "", "has no closing bracket"),
    ],
)
async def test_a_fault_names_the_attribute(body: bytes, where: str, told: str) -> None:
    found = await fault(body)
    assert found["pointer"] == where
    assert told in found["detail"]


async def test_a_batch_is_limited_and_a_fault_names_the_event() -> None:
    async def batch(events: list[bytes], records_max: int = 5_000) -> Records:
        return await event_batch(b" [" + b",".join(events) + b"]\n", records_max=records_max, pace=pace)

    events = [event(id=str(number), data=number) for number in range(2_000)]
    records = await batch(events)
    assert records.values == [str(number).encode() for number in range(2_000)]
    for wrong, where, told in (
        ([*events[:1_500], event(id=""), *events[1_500:]], "/1500/id", "is empty"),
        ([event(data=[0] * 70_000)], "/0", "more than 64000 JSON values"),
        ([event(**{f"x{number}": 1 for number in range(200)})], "/0", "more than 100 members"),
        ([], "", "the batch is empty"),
    ):
        with pytest.raises(Problem) as caught:
            await batch(wrong)
        assert caught.value.extra["errors"][0]["pointer"] == where
        assert told in caught.value.detail
    with pytest.raises(Problem, match="more than 1999 records"):
        await batch(events, 1_999)
    with pytest.raises(Problem, match="a batch of CloudEvents must be a JSON list"):
        await event_batch(event(), records_max=5, pace=pace)


def headers_of(**attributes: str) -> list[tuple[str, str]]:
    return [(f"ce-{name}", value) for name, value in (ATTRIBUTES | attributes).items()]


def test_a_binary_event_keeps_its_body() -> None:
    given = [("host", "x"), *headers_of(partitionkey="k", subject="%C3%BC%20a", note='"a \\"b\\""')]
    records = binary_event([*given, ("content-type", "text/plain;charset=latin-1")], b"\xff")
    assert (records.values, records.keys) == ([b"\xff"], [b"k"])
    more = [("ce_partitionkey", b"k"), ("ce_subject", "ü a".encode()), ("ce_note", b'a "b"')]
    assert records.headers == [[*HEADERS, *more, ("content-type", b"text/plain;charset=latin-1")]]
    assert binary_event(headers_of(), b"").headers == [HEADERS]


@pytest.mark.parametrize(
    ("headers", "where", "told"),
    [
        (headers_of()[:-1], "ce-type", "is missing"),
        (headers_of(specversion="0.3"), "ce-specversion", "must be 1.0, got '0.3'"),
        ([*headers_of(), ("ce-id", "2")], "ce-id", "more than once"),
        (headers_of(my_name="x"), "ce-my_name", "lower-case letters and digits"),
        (headers_of(x="ü"), "ce-x", "percent-encoded UTF-8"),
        (headers_of(x="100%"), "ce-x", "percent-encoded UTF-8"),
        (headers_of(x="%ff"), "ce-x", "not as UTF-8"),
        (headers_of(x="%00"), "ce-x", "control characters"),
        (headers_of(datacontenttype="text/plain"), "ce-datacontenttype", "Content-Type is its type"),
    ],
)
def test_a_wrong_header_is_named(headers: list[tuple[str, str]], where: str, told: str) -> None:
    with pytest.raises(Problem) as caught:
        binary_event(headers, b"")
    (found,) = caught.value.extra["errors"]
    assert found["parameter"] == where
    assert told in found["detail"]


@pytest.mark.parametrize(
    "time",
    [
        "2024-02-29T23:59:60Z",
        "0000-02-29t00:00:00.123456789z",
        "9999-12-31T23:59:59-23:59",
    ],
)
async def test_times_of_rfc_3339_are_accepted(time: str) -> None:
    records = await structured(event(time=time))
    assert records.headers is not None
    assert ("ce_time", time.encode()) in records.headers[0]


def test_a_binary_event_without_the_type_of_its_data_in_its_header_is_refused() -> None:
    headers = [("ce-" + name, value) for name, value in ATTRIBUTES.items()]
    with pytest.raises(Problem) as caught:
        binary_event([*headers, ("content-type", "")], b"a")
    detail = "is empty: send a value, or leave it out"
    assert caught.value.extra["errors"] == [{"parameter": "content-type", "detail": detail}]
