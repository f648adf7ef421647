from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.json_texts import EXAMPLES, NOT_JSON, values

from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_decoding import Records, parse_body

NOW_US = 1_700_000_000_000_000


def parse(*records: Any, records_max: int = 100) -> Records:
    return parse_body(json.dumps({"records": list(records)}).encode(), records_max=records_max, now_us=NOW_US)


def refused(body: bytes, *, records_max: int = 100) -> list[dict[str, str]]:
    with pytest.raises(Problem) as caught:
        parse_body(body, records_max=records_max, now_us=NOW_US)
    assert caught.value.status == 422
    errors: list[dict[str, str]] = caught.value.extra["errors"]
    return errors


def refused_records(*records: Any) -> list[dict[str, str]]:
    return refused(json.dumps({"records": list(records)}).encode())


def test_values_are_decoded_by_their_encoding() -> None:
    records = parse(
        {"value": "grüß"},
        {"value": "aGk=", "value_encoding": "base64"},
        {"value": {"a": [1, 2.5, None, "ü"], "big": 2**80}, "value_encoding": "json"},
        {"value": "text", "value_encoding": "json"},
        {"value": ""},
    )
    assert records.columns().column("value").to_pylist() == [
        "grüß".encode(),
        b"hi",
        b'{"a": [1, 2.5, null, "\\u00fc"], "big": 1208925819614629174706176}',
        b'"text"',
        b"",
    ]
    assert records.columns().schema.names == ["value"]
    assert records.partitions is None


@pytest.mark.parametrize("encoding", ["utf8", "base64", "json"])
def test_null_is_a_tombstone_in_every_encoding(encoding: str) -> None:
    records = parse({"key": "k", "value": None, "value_encoding": encoding})
    assert records.columns().column("value").to_pylist() == [None]


def test_all_members_become_columns() -> None:
    records = parse(
        {
            "key": "/w==",
            "key_encoding": "base64",
            "value": "a",
            "headers": [["h", "1"], ["h", None], ["raw", "/w==", "base64"]],
            "tag": "t",
            "partition": 3,
            "timestamp_ms": 5,
        },
        {"value": "b"},
    )
    assert records.columns().column("key").to_pylist() == [b"\xff", None]
    assert records.columns().column("headers").to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "raw", "value": b"\xff"}],
        [],
    ]
    assert records.columns().column("tag").to_pylist() == ["t", None]
    stamps: Any = records.columns().column("timestamp")
    assert stamps.cast("int64").to_pylist() == [5000, NOW_US]
    assert records.partitions == [3, None]


def test_null_members_make_no_columns() -> None:
    records = parse({"value": "a", "key": None, "timestamp_ms": None, "partition": None, "tag": None})
    assert "timestamp" not in records.columns().schema.names
    assert records.partitions is None


@pytest.mark.parametrize(
    ("record", "pointer"),
    [
        ({}, "/records/0/value"),
        ({"value": 1}, "/records/0/value"),
        ({"value": {"a": 1}}, "/records/0/value"),
        ({"value": "a", "value_encoding": "latin1"}, "/records/0/value_encoding"),
        ({"value": "!", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "YQ", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": 5, "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "ü", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "YR==", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "YWEx=", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "YQ==\n", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "_w==", "value_encoding": "base64"}, "/records/0/value"),
        ({"value": "a", "key": 5}, "/records/0/key"),
        ({"value": "a", "key": "!", "key_encoding": "base64"}, "/records/0/key"),
        ({"value": "a", "key": "YR==", "key_encoding": "base64"}, "/records/0/key"),
        ({"value": "a", "partition": -1}, "/records/0/partition"),
        ({"value": "a", "partition": "1"}, "/records/0/partition"),
        ({"value": "a", "partition": 1.5}, "/records/0/partition"),
        ({"value": "a", "partition": True}, "/records/0/partition"),
        ({"value": "a", "timestamp_ms": -1}, "/records/0/timestamp_ms"),
        ({"value": "a", "timestamp_ms": 10**18}, "/records/0/timestamp_ms"),
        ({"value": "a", "headers": {"a": "b"}}, "/records/0/headers"),
        ({"value": "a", "headers": [["a"]]}, "/records/0/headers/0"),
        ({"value": "a", "headers": [["a", "b"], [None, "b"]]}, "/records/0/headers/1"),
        ({"value": "a", "headers": [["a", "b", "hex"]]}, "/records/0/headers/0"),
        ({"value": "a", "headers": [["a", "!", "base64"]]}, "/records/0/headers/0"),
        ({"value": "a", "headers": [["a", "YR==", "base64"]]}, "/records/0/headers/0"),
        ({"value": "a", "headers": [["a", 5]]}, "/records/0/headers/0/1"),
        ({"value": "a", "tag": "x" * 4097}, "/records/0/tag"),
        ({"value": "a", "tag": "ü" * 2049}, "/records/0/tag"),
        ({"value": "a", "vlaue": "b"}, "/records/0/vlaue"),
        ("text", "/records/0"),
        (None, "/records/0"),
    ],
)
def test_faults_have_pointers(record: Any, pointer: str) -> None:
    assert pointer in [error["pointer"] for error in refused_records(record)]


def test_the_index_is_that_of_the_invalid_record() -> None:
    good = {"value": "a"}
    assert [error["pointer"] for error in refused_records(good, {"value": 1}, good, {"value": 2})] == [
        "/records/1/value",
        "/records/3/value",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b'{"records":[]}',
        b'{"records":{}}',
        b'{"records":[{"value":"a"}],"more":1}',
        b'{"records":[{"value":"\xff"}]}',
        b'{"records":[{"value":"\\ud800"}]}',
        b'{"records":[{"value":NaN,"value_encoding":"json"}]}',
        b'{"records":[{"value":[-Infinity],"value_encoding":"json"}]}',
        b'{"records":[{"value":' + b"1" * 5000 + b',"value_encoding":"json"}]}',
        b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b',"value_encoding":"json"}]}',
        b'{"records":[{"value":"a"}]} trailing',
    ],
)
def test_bodies_that_are_not_records_are_refused(body: bytes) -> None:
    assert refused(body)


@pytest.mark.parametrize("text", EXAMPLES)
def test_json_is_stored_as_sent(text: str) -> None:
    body = f'{{"records":[{{"value":"a"}},{{"value_encoding":"json","value": {text}\t}},{{"value":"b"}}]}}'
    assert parse_body(body.encode(), records_max=3, now_us=NOW_US).values == [b"a", text.encode(), b"b"]


@given(st.lists(values.filter(lambda text: text != "null"), min_size=1, max_size=4), st.sampled_from(["", " ", "\n"]))
def test_any_json_is_stored_as_sent(texts: list[str], space: str) -> None:
    records = [f'{{"val\\u0075e":{space}{text}{space},"key":"k","value_encoding":"json"}}' for text in texts]
    body = f'{{"records":[{space}{",".join(records)}]}}'
    assert parse_body(body.encode(), records_max=4, now_us=NOW_US).values == [text.encode() for text in texts]


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda content: repr(content[:12]))
def test_json_is_validated_by_its_only_definition(content: bytes) -> None:
    body = b'{"records":[{"value":"a"},{"value_encoding":"json","value":' + content + b"}]}"
    faults = refused(body)
    if content.startswith((b"[" * 129, b'{"a":{')) and len(content) < 1000:
        assert faults == [
            {"pointer": "/records/1/value", "detail": "nested too deeply: at most 128 levels are supported"}
        ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", '{"a":[-Infinity]}'])
def test_a_number_that_json_does_not_have_is_reported_with_its_place(value: str) -> None:
    body = f'{{"records":[{{"value":1.5,"value_encoding":"json"}},{{"value":{value},"value_encoding":"json"}}]}}'
    assert [fault["pointer"] for fault in refused(body.encode())] == ["/records/1/value"]


def test_too_many_records_are_refused() -> None:
    assert parse({"value": "a"}, {"value": "b"}, records_max=2)
    body = json.dumps({"records": [{"value": "a"}] * 3}).encode()
    assert refused(body, records_max=2)[0]["pointer"] == "/records"


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    status = 200
    try:
        parse_body(body, records_max=10, now_us=NOW_US)
    except Problem as problem:
        status = problem.status
    assert status in {200, 422}


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), min_size=1, max_size=20))
@settings(max_examples=50)
def test_any_bytes_are_published_as_base64(values: list[bytes | None]) -> None:
    records = parse(
        *(
            {"value": None if value is None else base64.b64encode(value).decode(), "value_encoding": "base64"}
            for value in values
        )
    )
    assert records.columns().column("value").to_pylist() == values
