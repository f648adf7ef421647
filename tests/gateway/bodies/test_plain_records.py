from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_gateway.bodies.plain_records import plain_lines, plain_records
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_decoding import Records, parse_body

NOW_US = 5_000


def both(body: bytes, records_max: int = 10) -> tuple[Records | None, Records | None]:
    """Parse a body by the fast path and by the validator; None if it is refused."""
    try:
        validated = parse_body(body, records_max=records_max, now_us=NOW_US)
    except Problem:
        validated = None
    return plain_records(body, records_max=records_max, now_us=lambda: NOW_US), validated


def same(plain: Records, validated: Records) -> bool:
    """Compare records; a column without values equals an absent one."""

    def shown(records: Records) -> list[Any]:
        columns = (records.keys, records.headers, records.tags, records.partitions)
        used = [column if column and any(column) else None for column in columns]
        partitions = None if records.partitions is None else [*records.partitions]
        return [records.values, *used, partitions, records.timestamps_us]

    return shown(plain) == shown(validated)


VALUES = (
    st.none()
    | st.text(max_size=8)
    | st.integers(-3, 3)
    | st.sampled_from(["aGk=", "YR==", "YWEx=", "_w=="])
    | st.lists(st.integers(0, 1), max_size=1)
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "value": VALUES,
        "key": VALUES,
        "value_encoding": st.sampled_from(["utf8", "base64", "json", "x", None]),
        "key_encoding": st.sampled_from(["utf8", "base64", "json", None]),
        "tag": st.none() | st.text(max_size=3) | st.just("\u00e9" * 130),
        "partition": st.none() | st.sampled_from([0, 3, -1, 2**31, 1.0, True]),
        "timestamp_ms": st.none() | st.sampled_from([0, 7, -1, 2**60, 1.5, False]),
        "headers": st.just([["a", "b"]]),
        "other": st.just(1),
    },
)


@given(records=st.lists(RECORDS, max_size=3), records_max=st.integers(1, 3))
def test_the_fast_path_parses_like_the_validator(records: list[dict[str, Any]], records_max: int) -> None:
    plain, validated = both(json.dumps({"records": records}).encode(), records_max)
    if plain is not None:
        assert validated is not None
        assert same(plain, validated)


@pytest.mark.parametrize("text", ["YR==", "YWF=", "YWEx=", "YQ", "YQ==\n", "_w=="])
def test_base64_that_is_not_canonical_is_refused(text: str) -> None:
    for name in ("value", "key"):
        record = {"value": "YQ==", name: text, f"{name}_encoding": "base64"}
        assert both(json.dumps({"records": [{"value": "YQ=="}, record]}).encode()) == (None, None)
        assert plain_lines([json.dumps(record).encode()], now_us=lambda: NOW_US) is None


@pytest.mark.parametrize(
    "record",
    [
        {"value": "a"},
        {"value": None, "key": "k"},
        {"value": "aGk=", "value_encoding": "base64", "key": "aGk=", "key_encoding": "base64"},
        {"value": "\u00e9\u0000\ud83d\ude00", "tag": "t", "partition": 2, "timestamp_ms": 9},
    ],
)
def test_plain_records_are_accepted(record: dict[str, Any]) -> None:
    plain, validated = both(json.dumps({"records": [record, {"value": "b"}]}).encode())
    assert plain is not None
    assert validated is not None
    assert same(plain, validated)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"records":[]}',
        b'{"records":[{"value":"a"}],"more":1}',
        b'{"records":[{"value":"a"}]}x',
        b'\xef\xbb\xbf{"records":[{"value":"a"}]}',
        b'{"records":[{"value":"\\ud800"}]}',
        b'{"records":[{"value":"\xff"}]}',
        b'{"records":[{"value":"a\nb"}]}',
        b'{"records":[{"value":"a","partition":1.0}]}',
        b'{"records":[{"value":"a","partition":true}]}',
        b'{"records":[{"value":"=","value_encoding":"base64"}]}',
        b'{"records":[{"value":1,"value_encoding":"json"}]}',
        b'{"records":[{"value":"a","headers":[["a","b"]]}]}',
    ],
)
def test_other_bodies_are_left_to_the_validator(body: bytes) -> None:
    plain, _ = both(body)
    assert plain is None


def test_a_repeated_member_is_refused_by_both() -> None:
    assert both(b'{"records":[{"value":"a","value":"b"}]}') == (None, None)
